"""Components by name, and what a rank holds of them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from glmserve.api import CheckpointError, ConfigError, TensorInfo
from glmserve.models.block_fp8 import BlockFp8
from glmserve.models.dense import Dense
from glmserve.models.glm_moe_dsa import GlmMoeDsa
from glmserve.planning.cache import KV_DTYPES
from glmserve.planning.components import Component, Split, component_of, layer_of, split_of
from glmserve.planning.glm_moe_dsa import tensor_shapes
from glmserve.planning.shares import shares
from glmserve.planning.weights import check_layers, check_stored, rank_bytes, weigh

from .glm53 import facts, kit, shape, shipped, stored_as, subject


@pytest.mark.parametrize(
    ("tensor", "layer", "component", "split"),
    [
        ("model.embed_tokens.weight", "model.embed_tokens", Component.EMBEDDING, Split.REPLICATED),
        ("lm_head.trellis", "lm_head", Component.HEAD, Split.ROWS),
        ("model.norm.weight", "model.norm", Component.NORMS, Split.REPLICATED),
        ("model.layers.3.self_attn.o_proj.suh", "model.layers.3.self_attn.o_proj", Component.ATTENTION, Split.COLUMNS),
        (
            "model.layers.3.self_attn.kv_a_layernorm.weight",
            "model.layers.3.self_attn.kv_a_layernorm",
            Component.NORMS,
            Split.REPLICATED,
        ),
        (
            "model.layers.3.self_attn.indexer.k_norm.bias",
            "model.layers.3.self_attn.indexer.k_norm",
            Component.INDEXER,
            Split.REPLICATED,
        ),
        (
            "model.layers.3.mlp.experts.7.up_proj.weight_scale_inv",
            "model.layers.3.mlp.experts.7.up_proj",
            Component.ROUTED,
            Split.ROWS,
        ),
        ("model.layers.3.mlp.gate.weight", "model.layers.3.mlp.gate", Component.ROUTER, Split.REPLICATED),
        (
            "model.layers.3.mlp.gate.e_score_correction_bias",
            "model.layers.3.mlp.gate.e_score_correction_bias",
            Component.ROUTER,
            Split.REPLICATED,
        ),
        ("model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.gate_proj", Component.DENSE_MLP, Split.ROWS),
        ("model.layers.78.mlp.gate.weight", "model.layers.78.mlp.gate", Component.MTP, Split.REPLICATED),
        ("rope_freqs.weight", "rope_freqs", Component.OTHER, Split.REPLICATED),
    ],
)
def test_a_name_tells_layer_component_and_cut(tensor: str, layer: str, component: Component, split: Split) -> None:
    assert layer_of(tensor) == layer
    assert component_of(layer, 78) is component
    assert split_of(layer) is split


@pytest.mark.parametrize("tensor", [1, 2, 4, 8])
def test_every_byte_is_on_some_rank_and_only_replicated_ones_on_all(tensor: int) -> None:
    cut = shares(facts().config, tensor)
    for info in list(shipped().tensors.values())[:4000]:
        held = rank_bytes(info, cut.of(layer_of(info.name)))
        assert info.nbytes <= held * tensor
        assert held in (info.nbytes, math.ceil(info.nbytes / tensor))


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        ("q_b_proj.trellis", False),
        ("q_b_proj.suh", True),
        ("q_b_proj.svh", False),
        ("o_proj.trellis", False),
        ("o_proj.suh", False),
        ("o_proj.svh", True),
        ("q_a_proj.trellis", True),
    ],
)
def test_a_cut_exl3_layer_keeps_the_scales_of_the_side_that_is_not_cut(name: str, whole: bool) -> None:
    info = TensorInfo(f"model.layers.0.self_attn.{name}", (4096,), "F16", 8192)
    assert rank_bytes(info, shares(facts().config, 4).of(layer_of(info.name))) == (8192 if whole else 2048)


def test_more_ranks_hold_less_each() -> None:
    held = [sum(part.rank_bytes for part in weigh(shipped(), ranks, None, shape())) for ranks in (1, 2, 4, 8)]
    assert held == sorted(held, reverse=True)
    assert held[0] == sum(info.nbytes for info in shipped().tensors.values())


def test_parameters_are_those_of_the_model_however_it_is_stored() -> None:
    counts = [
        [part.parameters for part in weigh(checkpoint, 4, None, shape())]
        for checkpoint in (shipped(), kit(2.75, 8, 6), stored_as(None), stored_as({"quant_method": "fp8"}))
    ]
    assert counts[1:] == counts[:1] * 3


def test_an_installed_quantization_says_what_it_holds() -> None:
    plain, fp8 = (weigh(stored_as(method), 1, Dense(), shape()) for method in (None, {"quant_method": "fp8"}))
    for part, other in zip(plain, fp8, strict=True):
        if part.component is Component.EMBEDDING:
            assert part.rank_bytes == part.stored_bytes  # read from the file
        else:
            assert part.rank_bytes == 4 * part.parameters  # on this CPU, float32
        assert other.rank_bytes == part.rank_bytes  # scales are part of their weight


def test_a_rank_without_a_head_is_refused_and_a_rank_with_fewer_is_not() -> None:
    with pytest.raises(ConfigError, match=r"^parallel\.tensor is 65, but the model has only 64 query heads to spread"):
        subject().weights(65)
    uneven, even = (subject().weights(ranks) for ranks in (3, 4))
    assert sum(part.rank_bytes for part in uneven) > sum(part.rank_bytes for part in even)


def without(*endings: str) -> object:
    checkpoint = kit(3.0, 4, 6)
    kept = {name: info for name, info in checkpoint.tensors.items() if not layer_of(name).endswith(endings)}
    changed = object.__new__(type(checkpoint))
    changed.path, changed.config, changed.tensors = checkpoint.path, checkpoint.config, kept
    return changed


def test_headers_that_lack_a_layer_or_have_one_too_many_are_refused_by_name() -> None:
    check_layers(shipped(), shape())
    lacking = without("model.layers.5.mlp.gate", "lm_head")
    with pytest.raises(CheckpointError, match=r"lacks layers: lm_head, model\.layers\.5\.mlp\.gate\.$"):
        check_layers(lacking, shape())  # type: ignore[arg-type]
    lacking.tensors = {**shipped().tensors, "model.stray.weight": TensorInfo("model.stray.weight", (1,), "F32", 4)}  # type: ignore[attr-defined]
    with pytest.raises(CheckpointError, match=r"has unexpected layers: model\.stray\.$"):
        check_layers(lacking, shape())  # type: ignore[arg-type]


def test_an_indexer_that_a_layer_does_not_read_takes_disk_and_no_memory() -> None:
    more = stored_as(None)
    plain = weigh(more, 4, None, shape())
    stray = TensorInfo("model.layers.4.self_attn.indexer.wk.weight", (128, 6144), "BF16", 2 * 128 * 6144)
    more.tensors = {**more.tensors, stray.name: stray}
    check_layers(more, shape())
    for part, other in zip(plain, weigh(more, 4, None, shape()), strict=True):
        extra = stray.nbytes if part.component is Component.INDEXER else 0
        assert other == replace(part, stored_bytes=part.stored_bytes + extra)


def test_a_checkpoint_may_come_without_its_next_token_layer_but_not_with_a_part_of_it() -> None:
    layers = tuple({layer_of(name) for name in tensor_shapes(shape()) if ".layers.78." in name})
    check_layers(without(*layers), shape())  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match=r"lacks layers: model\.layers\.78\.eh_proj\.$"):
        check_layers(without("78.eh_proj"), shape())  # type: ignore[arg-type]


def test_a_quantization_that_does_not_find_its_tensors_is_refused_by_the_first() -> None:
    info = GlmMoeDsa().describe(facts().config, "float32")
    for reads_plain in (Dense(), BlockFp8()):
        check_stored(stored_as(None), reads_plain, info)
    with pytest.raises(
        CheckpointError,
        match=r"no tensor 'model\.layers\.0\..*q_a_proj\.weight', which family 'glm_moe_dsa' reads with .* 'dense'",
    ):
        check_stored(shipped(), Dense(), info)
    name = "model.layers.4.self_attn.o_proj.weight"
    turned = stored_as(None)
    turned.tensors = {**turned.tensors, name: replace(turned.tensors[name], shape=(16384, 6144))}
    with pytest.raises(CheckpointError, match=rf"tensor '{name}' has shape \[16384, 6144\], but .* \[6144, 16384\]\.$"):
        check_stored(turned, Dense(), info)


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_the_plan_counts_the_cache_and_the_layers_that_the_family_describes(kv_dtype: str) -> None:
    info = GlmMoeDsa().describe(facts().config, kv_dtype)
    sizes = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1}
    held = sum(math.prod(paged.per_token) * sizes[paged.dtype] for paged in info.paged)
    assert held == sum(entry.token_bytes for entry in subject().cache(kv_dtype, mtp=False))
    planned = tensor_shapes(shape())
    for spec in info.linears:
        for part, features in zip(spec.parts, spec.part_features, strict=True):
            assert planned[f"{part}.weight"] == (features, spec.in_features)


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_only_the_indexers_read_the_whole_context(kv_dtype: str) -> None:
    cache = subject().cache(kv_dtype, mtp=True)
    whole = {entry.name for entry in cache if entry.most_read is None}
    assert whole == ({"index", "index_scale"} if kv_dtype == "float8_e4m3" else {"index"})
    assert {entry.most_read for entry in cache if entry.name not in whole} == {2048}
    assert not any(entry.kv_heads for entry in cache)
    layers = {(entry.name, entry.replicated): entry.layers for entry in cache}
    assert layers.items() >= {("latent", False): 78, ("latent", True): 1, ("index", False): 21}.items()
