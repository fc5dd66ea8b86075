"""The configuration of `glm_moe_dsa`, read strictly: what the family does not compute it refuses by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from glmserve.api import CheckpointError

from ..config import Keys
from ..rope import inverse_frequencies, rope_settings

FAMILY = "glm_moe_dsa"
FLASH = "Glm5NextForConditionalGeneration"
LATENT_NORM_EPS = "latent_norm_eps"
"""Epsilon of q_a_layernorm and kv_a_layernorm. Checkpoints do not say it: transformers' class has 1e-6, the serving
engines take rms_norm_eps (1e-5). Unset, it is rms_norm_eps."""
_ONLY: Mapping[str, Any] = {
    "model_type": FAMILY,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "rope_interleave": True,
    "indexer_rope_interleave": True,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "moe_router_dtype": "float32",
    "n_group": 1,
    "topk_group": 1,
    "swiglu_limit": 0,
}
"""Keys that may be missing or null, and else have this value."""


@dataclass(frozen=True)
class GlmConfig:
    """Sizes in elements; `head_dim` of the file is not among them, for it means something else in every release."""

    vocab_size: int
    hidden: int
    layers: int
    heads: int
    q_rank: int
    kv_rank: int
    """Width of the latent that all heads share."""
    nope_dim: int
    rope_dim: int
    value_dim: int
    dense_inner: int
    expert_inner: int
    experts: int
    experts_per_token: int
    shared_experts: int
    routed_scale: float
    index_heads: int
    index_dim: int
    index_topk: int
    full_indexer: tuple[bool, ...]
    """Per layer: it selects itself. The others attend to what the nearest full layer before them selected."""
    sparse_mlp: tuple[bool, ...]
    """Per layer: a mixture of experts instead of one dense MLP."""
    nextn_layers: int
    """Next-token-prediction layers stored behind the last layer: 0 or 1."""
    eps: float
    latent_eps: float
    max_context: int

    @property
    def full_indexers(self) -> tuple[int, ...]:
        """The layers that select themselves."""
        return tuple(i for i, full in enumerate(self.full_indexer) if full)

    @property
    def latent_width(self) -> int:
        """Elements of a token's entry in the latent cache: the latent, then the rotated key."""
        return self.kv_rank + self.rope_dim


def read_config(config: Mapping[str, Any]) -> GlmConfig:
    """Raises CheckpointError that names the key that does not fit."""
    keys = Keys(config)
    if config.get("model_type") == "glm5_next" or FLASH in keys.names("architectures"):
        raise CheckpointError(
            "This is GLM-5.3-Flash (glm5_next), another architecture than GLM-5.3's glm_moe_dsa (linear attention, "
            "pooled indexer, hyper-connections, vision), and no installed family runs it; serve GLM-5.3 instead."
        )
    for key, value in _ONLY.items():
        keys.only(key, value, FAMILY)
    layers = keys.positive("num_hidden_layers")
    eps = keys.number("rms_norm_eps")
    rope_dim, index_dim = keys.positive("qk_rope_head_dim"), keys.positive("index_head_dim")
    if rope_dim % 2 or rope_dim > index_dim:
        raise CheckpointError(
            f"The model's configuration has qk_rope_head_dim = {rope_dim}; an even number is needed, no larger than "
            f"index_head_dim = {index_dim}."
        )
    _check_rope(config, rope_dim)
    experts, chosen = keys.positive("n_routed_experts"), keys.positive("num_experts_per_tok")
    if chosen > experts:
        raise CheckpointError(f"num_experts_per_tok = {chosen} is more than n_routed_experts = {experts}.")
    nextn = config.get("num_nextn_predict_layers") or 0
    if nextn not in (0, 1):
        raise CheckpointError(f"num_nextn_predict_layers is {nextn!r}; family {FAMILY!r} knows 0 or 1 such layer.")
    return GlmConfig(
        vocab_size=keys.positive("vocab_size"),
        hidden=keys.positive("hidden_size"),
        layers=layers,
        heads=keys.positive("num_attention_heads"),
        q_rank=keys.positive("q_lora_rank"),
        kv_rank=keys.positive("kv_lora_rank"),
        nope_dim=keys.positive("qk_nope_head_dim"),
        rope_dim=rope_dim,
        value_dim=keys.positive("v_head_dim"),
        dense_inner=keys.positive("intermediate_size"),
        expert_inner=keys.positive("moe_intermediate_size"),
        experts=experts,
        experts_per_token=chosen,
        shared_experts=keys.positive("n_shared_experts"),
        routed_scale=keys.number("routed_scaling_factor"),
        index_heads=keys.positive("index_n_heads"),
        index_dim=index_dim,
        index_topk=keys.positive("index_topk"),
        full_indexer=_full_indexer(config, keys, layers),
        sparse_mlp=_sparse_mlp(config, keys, layers),
        nextn_layers=nextn,
        eps=eps,
        latent_eps=keys.number(LATENT_NORM_EPS, eps),
        max_context=keys.positive("max_position_embeddings"),
    )


def _check_rope(config: Mapping[str, Any], dim: int) -> None:
    settings = rope_settings(config)
    if not settings.get("rope_theta"):
        raise CheckpointError(
            "The model's configuration has no rope_theta, neither in rope_parameters nor beside it; add the value the "
            "model was trained with (8000000 for GLM-5.2 and 5.3), for any other gives wrong text."
        )
    kind = settings.get("rope_type", "default")
    if kind != "default":
        raise CheckpointError(f"rope_type is {kind!r}; family {FAMILY!r} computes unscaled rotary positions only.")
    inverse_frequencies(config, dim)


def _full_indexer(config: Mapping[str, Any], keys: Keys, layers: int) -> tuple[bool, ...]:
    """indexer_types, else index_topk_pattern, else index_topk_freq with index_skip_topk_offset."""
    types, pattern = config.get("indexer_types"), config.get("index_topk_pattern")
    if types is not None:
        full = _flags("indexer_types", types, layers, {"full": True, "shared": False})
    elif pattern is not None:
        full = _flags("index_topk_pattern", pattern, layers, {"F": True, "S": False})
    else:
        frequency, offset = keys.positive("index_topk_freq", 1), keys.positive("index_skip_topk_offset", 2)
        full = tuple(max(i - offset + 1, 0) % frequency == 0 for i in range(layers))
    if not full[0]:
        raise CheckpointError("Layer 0 has no indexer of its own, and there is no layer before it to share one with.")
    return full


def _sparse_mlp(config: Mapping[str, Any], keys: Keys, layers: int) -> tuple[bool, ...]:
    """mlp_layer_types, else every layer from first_k_dense_replace on."""
    types = config.get("mlp_layer_types")
    if types is not None:
        return _flags("mlp_layer_types", types, layers, {"dense": False, "sparse": True})
    keys.only("moe_layer_freq", 1, FAMILY)
    dense = config.get("first_k_dense_replace", 0)
    if not isinstance(dense, int) or isinstance(dense, bool) or not 0 <= dense <= layers:
        raise CheckpointError(f"first_k_dense_replace is {dense!r}; a number of layers up to {layers} is needed.")
    return tuple(i >= dense for i in range(layers))


def _flags(key: str, values: Any, layers: int, meaning: Mapping[str, bool]) -> tuple[bool, ...]:
    known = isinstance(values, list | str) and all(isinstance(v, str) and v in meaning for v in values)
    if not known or len(values) != layers:
        raise CheckpointError(
            f"The model's configuration needs {layers} values of {' or '.join(meaning)} in {key}, one a layer; "
            f"it has {str(values)[:80]}."
        )
    return tuple(meaning[value] for value in values)
