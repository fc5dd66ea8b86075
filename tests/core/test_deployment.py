"""From a profile to a plan: what it promises holds for the engine, and what would stop the start is said at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from glmserve.api import CheckpointError, ConfigError, PluginError
from glmserve.deployment import Plan, plan
from glmserve.plugins import Plugins, load_plugins
from glmserve.profiles import Profile, load_profile
from glmserve.store.safetensors_reader import SafetensorsCheckpoint

from .engine import tiny


@pytest.fixture(scope="module")
def plugins() -> Plugins:
    return load_plugins(environ={})


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_checkpoint(tmp_path_factory.mktemp("checkpoint"))


def profile_of(checkpoint: Path, *overrides: str) -> Profile:
    path = checkpoint / "tiny.toml"
    path.write_text(f'[model]\nsource = "path:{checkpoint}"\nserved_name = "tiny"\n[engine]\nmax_context = 256\n')
    return load_profile(str(path), overrides, {})


def planned(checkpoint: Path, plugins: Plugins, *overrides: str) -> Plan:
    return plan(profile_of(checkpoint, *overrides), plugins)


def test_the_planned_bytes_are_those_of_the_engine(checkpoint: Path, plugins: Plugins) -> None:
    memory = planned(checkpoint, plugins, "engine.kv_tokens=1020", "engine.page_tokens=8").memory
    model = tiny.load_model(checkpoint)
    engine = tiny.make_engine(model, start=False, kv_tokens=1020)
    assert memory is not None
    assert memory.kv_bytes == sum(tensor.nbytes for tensor in engine._pool.tensors.values())
    embedding_bytes = 4 * tiny.VOCAB * 48  # read from the file at each look-up, so the model does not count it
    assert memory.weights_bytes == model.nbytes + embedding_bytes
    assert memory.total_bytes == memory.kv_bytes + memory.weights_bytes


def test_a_smaller_type_of_the_pool_halves_its_bytes(checkpoint: Path, plugins: Plugins) -> None:
    full = planned(checkpoint, plugins).memory
    half = planned(checkpoint, plugins, "engine.kv_dtype=bfloat16").memory
    assert full is not None
    assert half is not None
    assert half.kv_bytes * 2 == full.kv_bytes


def test_a_plan_reads_headers_and_no_weights(
    checkpoint: Path, plugins: Plugins, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: object, name: str) -> None:
        raise AssertionError(f"the plan read {name}")

    monkeypatch.setattr(SafetensorsCheckpoint, "read", refuse)
    monkeypatch.setattr(SafetensorsCheckpoint, "read_rows", refuse)
    assert planned(checkpoint, plugins).present


def test_a_family_nobody_has_is_refused_with_those_there_are(
    checkpoint: Path, plugins: Plugins, tmp_path: Path
) -> None:
    config = (checkpoint / "config.json").read_text()
    (tmp_path / "config.json").write_text(config.replace("LlamaForCausalLM", "MambaForCausalLM"))
    (tmp_path / "model.safetensors").symlink_to(checkpoint / "model.safetensors")
    with pytest.raises(
        CheckpointError, match=r"No installed model family runs MambaForCausalLM .*; there is glm_moe_dsa, llama\.$"
    ):
        planned(tmp_path, plugins)


def test_a_context_longer_than_the_models_is_refused_where_it_was_set(checkpoint: Path, plugins: Plugins) -> None:
    with pytest.raises(ConfigError, match=r"^--set engine\.max_context: .* is 1024 .* made for 512; lower it\.$"):
        planned(checkpoint, plugins, "engine.max_context=1024")


@pytest.mark.parametrize("key", ["model.family", "model.quantization", "drafter.name", "cache.name", "transport.name"])
def test_an_unknown_provider_is_refused_where_it_was_named(checkpoint: Path, plugins: Plugins, key: str) -> None:
    with pytest.raises(PluginError) as caught:
        planned(checkpoint, plugins, f"{key}=nobody")
    assert str(caught.value).startswith(f"--set {key}: {key}: No ")
    assert "named 'nobody' is installed" in str(caught.value)


def test_an_unknown_provider_in_the_file_is_told_with_its_line(checkpoint: Path, plugins: Plugins) -> None:
    path = checkpoint / "typo.toml"
    path.write_text('[model]\nsource = "path:."\nserved_name = "m"\n[drafter]\nname = "ngran"\n')
    with pytest.raises(PluginError, match=r"typo\.toml:5: drafter\.name: .* did you mean 'ngram'\.$"):
        plan(load_profile(str(path), environ={}), plugins)
