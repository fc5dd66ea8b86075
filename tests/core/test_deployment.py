"""From a profile to a plan: what it promises holds for the engine, and what would stop the start is said at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from glmserve.api import CheckpointError, ConfigError, PluginError
from glmserve.deployment import plan
from glmserve.planning.budget import Budget
from glmserve.planning.plan import Plan
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


def memory_of(plan: Plan) -> Budget:
    assert plan.figures is not None
    return plan.figures.memory


def test_the_planned_bytes_are_those_of_the_engine(checkpoint: Path, plugins: Plugins) -> None:
    memory = memory_of(planned(checkpoint, plugins, "engine.kv_tokens=1020", "engine.page_tokens=8"))
    model = tiny.load_model(checkpoint)
    engine = tiny.make_engine(model, start=False, kv_tokens=1020)
    assert memory.kv_bytes == sum(tensor.nbytes for tensor in engine._ranks.worker.memory.tensors.values())
    embedding_bytes = 4 * tiny.VOCAB * 48  # read from the file at each look-up, so the model does not count it
    norm_bytes = 4 * 48 * 5  # nor these
    assert memory.weights_bytes == model.nbytes + embedding_bytes + norm_bytes
    assert memory.total_bytes == memory.kv_bytes + memory.weights_bytes


def test_a_tied_embedding_counts_once(checkpoint: Path, plugins: Plugins, tmp_path: Path) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    (tmp_path / "model.safetensors").symlink_to(checkpoint / "model.safetensors")
    untied, tied = (memory_of(planned(path, plugins)).weights_bytes for path in (checkpoint, tmp_path))
    assert untied - tied == 4 * tiny.VOCAB * 48


def test_a_smaller_type_of_the_pool_halves_its_bytes(checkpoint: Path, plugins: Plugins) -> None:
    full = memory_of(planned(checkpoint, plugins))
    half = memory_of(planned(checkpoint, plugins, "engine.kv_dtype=bfloat16"))
    assert half.kv_bytes * 2 == full.kv_bytes


def test_a_type_that_the_family_does_not_have_is_refused(checkpoint: Path, plugins: Plugins) -> None:
    with pytest.raises(CheckpointError, match=r"llama.*float8_e4m3|float8_e4m3.*llama"):
        planned(checkpoint, plugins, "engine.kv_dtype=float8_e4m3")


def test_a_device_that_is_too_small_stops_the_start_only_where_the_profile_declares_it(
    checkpoint: Path, plugins: Plugins
) -> None:
    small = planned(checkpoint, plugins, "device.memory_gib=1.0001")
    assert not memory_of(small).fits
    with pytest.raises(ConfigError, match=r"^custom cannot start: the memory of a rank is 0\.0\d GiB short .*\.$"):
        small.require()
    guessed = planned(checkpoint, plugins, "device.reserve_gib={ all = 1e6 }")
    assert not memory_of(guessed).fits
    guessed.require()


def test_ranks_and_hosts_have_to_be_as_many(checkpoint: Path, plugins: Plugins) -> None:
    with pytest.raises(ConfigError, match=r"^--set parallel\.tensor: .* is 2, but transport\.hosts names 1; each rank"):
        planned(checkpoint, plugins, "parallel.tensor=2")
    with pytest.raises(ConfigError, match=r"^--set parallel\.context: .* is 2, which does not divide parallel\.tensor"):
        planned(checkpoint, plugins, "parallel.context=2")
    two = ["parallel.tensor=2", "parallel.context=2", 'transport.hosts=["localhost", "localhost"]']
    with pytest.raises(
        ConfigError, match=r"^--set engine\.page_tokens: .* is 7, and the positions .* of 2 ranks; choose"
    ):
        planned(checkpoint, plugins, *two, "engine.page_tokens=7", "engine.prefill_chunk=7")


@pytest.mark.parametrize(
    ("key", "distribution"),
    [
        ("model.quantization=exl3", "glmserve-quant-exl3"),
        ("drafter.name=dflash2", "glmserve-drafter-dflash2"),
        ("cache.name=prefix", "glmserve-cache-prefix"),
        ("transport.name=roce", "glmserve-transport-roce"),
    ],
)
def test_a_first_party_plugin_that_is_not_installed_is_planned_and_named_but_does_not_start(
    checkpoint: Path, plugins: Plugins, key: str, distribution: str
) -> None:
    plan = planned(checkpoint, plugins, key)
    (missing,) = plan.missing
    assert missing.distribution == distribution
    assert plan.figures is not None
    with pytest.raises(PluginError, match=rf"^custom cannot start: not installed is .* \({distribution}\); install "):
        plan.require()


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
