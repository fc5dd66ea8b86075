"""What a checkpoint of glm_moe_dsa may hold, what it must hold, and what is refused by name."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from glmserve.api import CheckpointError
from glmserve.models.block_fp8 import BlockFp8
from glmserve.models.dense import Dense
from glmserve.models.glm_moe_dsa.config import read_config
from glmserve.plugins import load_plugins
from glmserve.store.checkpoint import open_checkpoint

from .formulas import compute
from .glm import load, logits_in_cuts, prompt
from .seeded import Tensors, golden_config, seeded_tensors, write

IDS = prompt(40, vocabulary=512)
WHOLE = [(len(IDS), True)]
INDEXER = "model.layers.6.self_attn.indexer"
SHARED = "model.layers.4.self_attn.indexer"
BLOCK = 128
Edit = Callable[[Tensors], Any]


@pytest.fixture(scope="module")
def tensors() -> Tensors:
    """All of a checkpoint: 7 layers and the next-token-prediction layer."""
    return seeded_tensors(read_config(golden_config()))


@pytest.fixture
def loaded(tensors: Tensors, tmp_path: Path) -> Callable[..., Any]:
    def loaded(
        edit: Edit = lambda t: None, quantization: Any = Dense, without: tuple[str, ...] = (), **keys: Any
    ) -> Any:
        changed = dict(tensors)
        edit(changed)
        config = {key: value for key, value in {**golden_config(), **keys}.items() if key not in without}
        write(tmp_path, config, changed)
        return load(tmp_path, quantization=quantization)

    return loaded


def logits(model: Any) -> torch.Tensor:
    return logits_in_cuts(model, IDS, WHOLE)


def put(name: str, *shape: int) -> Edit:
    return lambda tensors: tensors.__setitem__(name, torch.ones(*shape))


def drop(*names: str) -> Edit:
    return lambda tensors: [tensors.pop(name) for name in names]


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (drop("lm_head.weight"), "lacks tensors: lm_head.weight"),
        (drop("model.norm.weight"), "lacks tensors: model.norm.weight"),
        (
            drop("model.layers.5.mlp.experts.3.up_proj.weight"),
            "lacks tensors: model.layers.5.mlp.experts.3.up_proj.weight",
        ),
        (drop("model.layers.4.mlp.gate.weight"), "lacks tensors: model.layers.4.mlp.gate.weight"),
        (
            drop("model.layers.3.mlp.gate.e_score_correction_bias"),
            "lacks tensors: model.layers.3.mlp.gate.e_score_corr",
        ),
        (
            drop("model.layers.3.self_attn.kv_a_layernorm.weight"),
            "lacks tensors: model.layers.3.self_attn.kv_a_layernorm",
        ),
        (drop(f"{INDEXER}.wk.weight"), f"lacks tensors: {INDEXER}.wk.weight"),
        (drop(f"{INDEXER}.weights_proj.weight"), f"lacks tensors: {INDEXER}.weights_proj.weight"),
        (drop(f"{INDEXER}.k_norm.bias"), f"lacks tensors: {INDEXER}.k_norm.bias"),
        (drop("model.layers.7.eh_proj.weight"), "lacks tensors: model.layers.7.eh_proj.weight"),
        (
            drop("model.layers.7.self_attn.indexer.wk.weight"),
            "lacks tensors: model.layers.7.self_attn.indexer.wk.weight",
        ),
        (
            put("model.layers.3.mlp.experts.8.up_proj.weight", 64, 128),
            "unexpected tensors: model.layers.3.mlp.experts.8",
        ),
        (
            put("model.layers.3.mlp.gate_proj.weight", 64, 128),
            "unexpected tensors: model.layers.3.mlp.gate_proj.weight",
        ),
        (put("model.layers.8.eh_proj.weight", 128, 256), "unexpected tensors: model.layers.8.eh_proj.weight"),
        (
            put("model.layers.0.self_attn.q_proj.weight", 4, 4),
            "unexpected tensors: model.layers.0.self_attn.q_proj.weight",
        ),
        (
            put(f"{INDEXER}.k_norm.weight", 31),
            f"'{INDEXER}.k_norm.weight' has shape [31], but the configuration needs [32]",
        ),
        (put("model.layers.2.self_attn.kv_b_proj.weight", 224, 48), "[224, 48], but the configuration needs [224, 32]"),
        (put("model.layers.6.mlp.gate.weight", 9, 128), "'model.layers.6.mlp.gate.weight' has shape [9, 128]"),
        (put("model.layers.7.hnorm.weight", 127), "'model.layers.7.hnorm.weight' has shape [127]"),
    ],
)
def test_the_tensor_that_does_not_fit_is_named(loaded: Callable[..., Any], edit: Edit, words: str) -> None:
    """Pitfalls 2 and 8: an indexer is needed on every full layer, and on those alone."""
    with pytest.raises(CheckpointError) as refusal:
        loaded(edit)
    assert words in str(refusal.value)
    assert str(refusal.value).endswith(".")


def test_indexers_of_shared_layers_may_be_there_and_change_nothing(
    loaded: Callable[..., Any], tensors: Tensors
) -> None:
    """Pitfall 3: the configuration says which layers select, not what a converter wrote."""

    def add(changed: Tensors) -> None:
        for name, tensor in tensors.items():
            if name.startswith(INDEXER):
                changed[name.replace(INDEXER, SHARED)] = tensor * 3
        changed[f"{SHARED}.of_a_converter"] = torch.ones(5)

    expected = logits(loaded())
    model = loaded(add)
    assert model.layers[4].attention.indexer is None
    assert torch.equal(logits(model), expected)


def test_without_its_next_token_layer_a_model_serves_with_a_warning(
    loaded: Callable[..., Any], tensors: Tensors, caplog: pytest.LogCaptureFixture
) -> None:
    """Pitfall 16: converters drop it."""
    with caplog.at_level(logging.WARNING):
        expected = logits(loaded())
        assert caplog.messages == []
        last = [name for name in tensors if name.startswith("model.layers.7.")]
        assert torch.equal(logits(loaded(drop(*last))), expected)
    (message,) = caplog.messages
    assert "no tensor of layer 7" in message
    assert "'mtp' cannot run" in message


def test_a_next_token_layer_that_is_not_announced_is_unexpected(loaded: Callable[..., Any]) -> None:
    with pytest.raises(CheckpointError, match=r"unexpected tensors: model\.layers\.7\."):
        loaded(num_nextn_predict_layers=0)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_a_choice_bias_of_16_bits_is_refused(loaded: Callable[..., Any], kind: torch.dtype) -> None:
    """Pitfall 5: its values lie near 7 and differ by less than the type can tell."""
    name = "model.layers.5.mlp.gate.e_score_correction_bias"
    with pytest.raises(CheckpointError, match=f"'{name}' is stored as .*too coarse.*keep it in F32"):
        loaded(lambda changed: changed.__setitem__(name, changed[name].to(kind)))


def test_bfloat16_weights_are_their_twins_in_float32(loaded: Callable[..., Any]) -> None:
    def narrowed(changed: Tensors, back: bool) -> None:
        for name in changed:
            if not name.endswith("e_score_correction_bias"):
                changed[name] = changed[name].bfloat16()
                changed[name] = changed[name].float() if back else changed[name]

    found, twin = (logits(loaded(lambda changed, back=back: narrowed(changed, back))) for back in (False, True))
    assert torch.equal(found, twin)


def in_blocks(changed: Tensors, back: bool) -> None:
    """As the published FP8 checkpoints: all but embeddings, head, norms, routers, weights_proj and eh_proj."""
    kept = ("embed_tokens.weight", "lm_head.weight", "mlp.gate.weight", "weights_proj.weight", "eh_proj.weight")
    for name in [name for name, tensor in changed.items() if tensor.dim() == 2 and not name.endswith(kept)]:
        weight = changed[name]
        rows, columns = weight.shape
        high, wide = -(-rows // BLOCK), -(-columns // BLOCK)
        scales = torch.empty(high, wide)
        for i in range(high):
            for j in range(wide):
                scales[i, j] = weight[i * BLOCK : (i + 1) * BLOCK, j * BLOCK : (j + 1) * BLOCK].abs().max() / 448
        spread = scales.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)[:rows, :columns]
        codes = (weight / spread).to(torch.float8_e4m3fn)
        if back:
            changed[name] = codes.float() * spread
        else:
            changed[name], changed[f"{name}_scale_inv"] = codes, scales


FP8 = {
    "quant_method": "fp8",
    "weight_block_size": [BLOCK, BLOCK],
    "modules_to_not_convert": ["self_attn.indexers_proj"],
}


def test_block_float8_weights_are_their_dequantised_twins(loaded: Callable[..., Any]) -> None:
    found = logits(loaded(lambda changed: in_blocks(changed, False), BlockFp8, quantization_config=FP8))
    twin = logits(loaded(lambda changed: in_blocks(changed, True)))
    assert torch.equal(found, twin)
    assert not torch.equal(found, logits(loaded()))


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (
            drop("model.layers.1.self_attn.o_proj.weight_scale_inv"),
            "lacks tensors: model.layers.1.self_attn.o_proj.weight_s",
        ),
        (
            put("model.layers.3.mlp.gate.weight_scale_inv", 1, 1),
            "unexpected tensors: model.layers.3.mlp.gate.weight_scale",
        ),
        (put(f"{INDEXER}.wq_b.weight_scale_inv", 1, 1), f"'{INDEXER}.wq_b.weight_scale_inv' has shape [1, 1]"),
    ],
)
def test_the_scale_that_does_not_fit_is_named(loaded: Callable[..., Any], edit: Edit, words: str) -> None:
    def both(changed: Tensors) -> None:
        in_blocks(changed, False)
        edit(changed)

    with pytest.raises(CheckpointError) as refusal:
        loaded(both, BlockFp8, quantization_config=FP8)
    assert words in str(refusal.value)


def test_a_quantization_is_found_by_the_tensors(tensors: Tensors, tmp_path: Path) -> None:
    """And the family by the architecture; nobody has to name them."""
    changed = dict(tensors)
    in_blocks(changed, False)
    write(tmp_path, golden_config() | {"quantization_config": FP8}, changed)
    plugins, checkpoint = load_plugins(environ={}), open_checkpoint(tmp_path)
    assert plugins.families_of(checkpoint) == ["glm_moe_dsa"]
    assert plugins.quantizations_of(checkpoint) == ["block_fp8"]


@pytest.mark.parametrize("nested", [{}, {"rope_type": "default"}, None])
def test_an_absent_theta_is_refused(loaded: Callable[..., Any], nested: Any) -> None:
    """Pitfall 35: a default of 10,000 would give text that is wrong and looks right for a while."""
    with pytest.raises(CheckpointError, match=r"has no rope_theta.*8000000"):
        loaded(rope_parameters=nested)


def test_theta_is_read_nested_first_and_then_at_the_top(loaded: Callable[..., Any]) -> None:
    """Pitfall 35."""
    expected = logits(loaded())
    assert torch.equal(logits(loaded(without=("rope_parameters",), rope_theta=8e6)), expected)
    assert torch.equal(logits(loaded(rope_theta=1e4)), expected)
    assert not torch.equal(logits(loaded(rope_parameters={"rope_theta": 1e6})), expected)


def test_the_epsilon_of_the_latents_is_a_setting_and_else_that_of_all_norms(
    loaded: Callable[..., Any], tensors: Tensors
) -> None:
    for config in (golden_config() | {"latent_norm_eps": 0.01}, without(golden_config(), "latent_norm_eps")):
        wanted = compute(config, tensors, IDS).logits
        found = logits(loaded(without=("latent_norm_eps",) if "latent_norm_eps" not in config else (), **config))
        assert (found - wanted).abs().max() < 2e-5
    assert read_config(without(golden_config(), "latent_norm_eps")).latent_eps == 1e-5


def test_head_dim_means_nothing(loaded: Callable[..., Any]) -> None:
    """It is 64, 192 or absent in releases of the same shapes."""
    expected = logits(loaded())
    assert torch.equal(logits(loaded(head_dim=192)), expected)
    assert torch.equal(logits(loaded(without=("head_dim",))), expected)


def without(config: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in names}
