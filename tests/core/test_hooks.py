"""Every hook, with a plugin that uses it and a server part that notices."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from glmserve.api import CheckpointError, ConfigError, hookspecs
from glmserve.deployment import Plan, plan
from glmserve.plugins import Plugins, load_plugins
from glmserve.profiles import load_profile
from glmserve.providers import SEAMS

from .distributions import drafter_source, install
from .engine import tiny

HOOKS = [name for name, value in vars(hookspecs).items() if hasattr(value, "glmserve_spec")]

QUANTIZATION = """
from glmserve.api import Quantization, hookimpl

class Halves(Quantization):
    name = "halves"

    @classmethod
    def detect(cls, checkpoint):
        return checkpoint.format == "safetensors"

    def memory_bytes(self, checkpoint, spec):
        return 1000

    def load_linear(self, checkpoint, spec): ...
    def load_embedding(self, checkpoint, name): ...
    def load_vector(self, checkpoint, name): ...

@hookimpl
def quantizations():
    return [Halves]
"""

CACHE = """
from glmserve.api import Match, PrefixCache, hookimpl

class Diary(PrefixCache):
    name = "diary"

    def __init__(self, pages, fingerprint, options):
        self.stored = []

    def match(self, tokens, salt):
        return Match(reason="a diary is never read")

    def restore(self, match, pages):
        return 0

    def store(self, tokens, salt, pages):
        self.stored.append(len(tokens))

    def evict(self, nbytes):
        return 0

    def stats(self):
        return {"longest": max(self.stored, default=0)}

@hookimpl
def prefix_caches():
    return [Diary]
"""

TRANSPORT = """
from glmserve.api import Finding, Transport, hookimpl

class Pigeon(Transport):
    name = "pigeon"

    def preflight(self, topology):
        return [Finding("error", f"no pigeon flies to {topology.hosts[0]}.")]

    def open(self, topology, rank): ...

@hookimpl
def transports():
    return [Pigeon]
"""

FAMILY = """
from glmserve.api import ModelFamily, ModelInfo, PagedTensor, hookimpl

class Parrot(ModelFamily):
    name = "parrot"
    architectures = frozenset({"ParrotForCausalLM"})

    def describe(self, config, kv_dtype):
        paged = (PagedTensor("state", (10,), kv_dtype),)
        return ModelInfo(self.name, config["vocab_size"], 48, 1, 512, paged, (), "model.embed_tokens.weight", (2,))

    def load(self, checkpoint, quantization, info, progress=None): ...

@hookimpl
def model_families():
    return [Parrot]
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_checkpoint(tmp_path_factory.mktemp("checkpoint"))


def plugins_with(source: str, site: Path, monkeypatch: pytest.MonkeyPatch) -> Plugins:
    monkeypatch.syspath_prepend(site)
    install(site, "hook-plugin", source)
    return load_plugins(environ={})


def planned(checkpoint: Path, plugins: Plugins, site: Path, *overrides: str) -> Plan:
    profile = site / "tiny.toml"
    profile.write_text(f'[model]\nsource = "path:{checkpoint}"\nserved_name = "tiny"\n[engine]\nmax_context = 256\n')
    return plan(load_profile(str(profile), overrides, {}), plugins)


def test_every_hook_has_a_docstring_and_a_test_of_its_own() -> None:
    assert HOOKS
    for name in HOOKS:
        assert inspect.getdoc(getattr(hookspecs, name)), f"the hook {name} has no docstring"
        assert f"test_hook_{name}" in globals(), f"the hook {name} has no test named test_hook_{name}"


def test_every_hook_belongs_to_one_seam() -> None:
    assert sorted(seam.hook for seam in SEAMS.values()) == sorted(HOOKS)


def test_hook_quantizations(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugins = plugins_with(QUANTIZATION, tmp_path, monkeypatch)
    figures = planned(checkpoint, plugins, tmp_path, "model.quantization=halves").figures
    embedding_bytes = 4 * tiny.VOCAB * 48
    assert figures is not None
    # Seven linear layers in each of two blocks, and the head; two norms in each, and the last.
    assert figures.memory.weights_bytes == 15 * 1000 + embedding_bytes + 4 * 5 * 48
    with pytest.raises(CheckpointError, match=r"dense and halves can read .*; set model\.quantization to one of"):
        planned(checkpoint, plugins, tmp_path)


def test_hook_drafters(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = drafter_source("counter", extra="proposals = 0").replace(
        "        # Right", "        type(self).proposals += 1\n        # Right"
    )
    drafter: Any = plugins_with(source, tmp_path, monkeypatch).drafter("counter")
    engine = tiny.make_engine(tiny.load_model(checkpoint), drafter=drafter)
    tiny.generate(engine, [tiny.request((3, 4, 5))])
    engine.stop()
    assert drafter.proposals > 0


def test_hook_prefix_caches(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = plugins_with(CACHE, tmp_path, monkeypatch).cache("diary")
    engine = tiny.make_engine(tiny.load_model(checkpoint), cache=cache)
    tiny.generate(engine, [tiny.request(range(3, 23), max_tokens=1)])
    engine.stop()
    assert engine._cache.stats() == {"longest": 16}  # the full pages of 20 tokens, at 8 tokens a page


def test_hook_transports(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugins = plugins_with(TRANSPORT, tmp_path, monkeypatch)
    with pytest.raises(ConfigError, match=r": no pigeon flies to localhost\.$"):
        planned(checkpoint, plugins, tmp_path, "transport.name=pigeon")


def test_hook_model_families(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugins = plugins_with(FAMILY, tmp_path, monkeypatch)
    config = (checkpoint / "config.json").read_text()
    parrot = tmp_path / "parrot"
    parrot.mkdir()
    (parrot / "config.json").write_text(config.replace("LlamaForCausalLM", "ParrotForCausalLM"))
    (parrot / "model.safetensors").symlink_to(checkpoint / "model.safetensors")
    resolved = planned(parrot, plugins, tmp_path)
    assert resolved.providers["family"] == "parrot"
    assert resolved.figures is not None
    assert resolved.figures.memory.kv_bytes == 32768 * 10 * 4
