"""The shapes of a `glm_moe_dsa` model (GLM-5, 5.1, 5.2, 5.3) from its configuration: tensors, cache, collectives.

Multi-head latent attention, a lightning indexer on some layers, mixtures of experts after the first dense layers, and
next-token layers behind the last one. Names and shapes are those of the published checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from glmserve.api import CheckpointError
from glmserve.models.config import Keys

ARCHITECTURE = "GlmMoeDsaForCausalLM"


@dataclass(frozen=True)
class GlmShape:
    """What the plan needs of the configuration, under the configuration's own names."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    intermediate_size: int
    moe_intermediate_size: int
    n_routed_experts: int
    num_experts_per_tok: int
    n_shared_experts: int
    first_k_dense_replace: int
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    num_nextn_predict_layers: int
    full_indexers: tuple[int, ...]
    """Layers of the trunk that have an indexer; the others use the selection of the nearest before them."""


def glm_shape(config: Mapping[str, Any]) -> GlmShape:
    """Read a configuration. Raises CheckpointError that names the key which is missing or odd."""
    keys = Keys(config)
    names = [name for name in GlmShape.__dataclass_fields__ if name not in _OPTIONAL]
    shape = {name: keys.positive(name) for name in names}
    layers = shape["num_hidden_layers"]
    mtp = config.get("num_nextn_predict_layers") or 0
    dense = config.get("first_k_dense_replace") or 0
    for name, value in (("num_nextn_predict_layers", mtp), ("first_k_dense_replace", dense)):
        if not isinstance(value, int) or value < 0:
            raise CheckpointError(f"The model's configuration has {name} = {value!r}; a count is needed.")
    return GlmShape(
        **shape,
        num_nextn_predict_layers=mtp,
        first_k_dense_replace=min(dense, layers),
        full_indexers=_full_indexers(config, layers),
    )


_OPTIONAL = ("num_nextn_predict_layers", "first_k_dense_replace", "full_indexers")


def _full_indexers(config: Mapping[str, Any], layers: int) -> tuple[int, ...]:
    """`indexer_types` wins, then `index_topk_pattern` ("F" and "S"), then frequency and offset."""
    types = config.get("indexer_types") or config.get("index_topk_pattern")
    if types is not None:
        if len(types) != layers:
            raise CheckpointError(f"The model's configuration types {len(types)} indexers, and it has {layers} layers.")
        return tuple(i for i, kind in enumerate(types) if kind in ("full", "F"))
    keys = Keys(config)
    frequency, offset = keys.positive("index_topk_freq", 1), keys.positive("index_skip_topk_offset", 2)
    return tuple(i for i in range(layers) if max(i - offset + 1, 0) % frequency == 0)


def tensor_shapes(glm: GlmShape) -> dict[str, tuple[int, ...]]:
    """Every tensor of the checkpoint, name -> shape, in the order of the layers; next-token layers included."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (glm.vocab_size, glm.hidden_size)}
    last = glm.num_hidden_layers + glm.num_nextn_predict_layers
    for i in range(last):
        mtp = i >= glm.num_hidden_layers
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in _attention(glm).items()}
        if mtp or i in glm.full_indexers:
            shapes |= {f"model.layers.{i}.{name}": shape for name, shape in _indexer(glm).items()}
        mlp = (
            _mixture(glm) if i >= glm.first_k_dense_replace else _swiglu("mlp", glm.hidden_size, glm.intermediate_size)
        )
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in mlp.items()}
        if mtp:
            shapes |= {f"model.layers.{i}.{name}": shape for name, shape in _next_token(glm).items()}
    shapes["model.norm.weight"] = (glm.hidden_size,)
    shapes["lm_head.weight"] = (glm.vocab_size, glm.hidden_size)
    return shapes


def _attention(glm: GlmShape) -> dict[str, tuple[int, ...]]:
    heads, hidden = glm.num_attention_heads, glm.hidden_size
    return {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_a_proj.weight": (glm.q_lora_rank, hidden),
        "self_attn.q_a_layernorm.weight": (glm.q_lora_rank,),
        "self_attn.q_b_proj.weight": (heads * (glm.qk_nope_head_dim + glm.qk_rope_head_dim), glm.q_lora_rank),
        "self_attn.kv_a_proj_with_mqa.weight": (glm.kv_lora_rank + glm.qk_rope_head_dim, hidden),
        "self_attn.kv_a_layernorm.weight": (glm.kv_lora_rank,),
        "self_attn.kv_b_proj.weight": (heads * (glm.qk_nope_head_dim + glm.v_head_dim), glm.kv_lora_rank),
        "self_attn.o_proj.weight": (hidden, heads * glm.v_head_dim),
    }


def _indexer(glm: GlmShape) -> dict[str, tuple[int, ...]]:
    at = "self_attn.indexer"
    return {
        f"{at}.wq_b.weight": (glm.index_n_heads * glm.index_head_dim, glm.q_lora_rank),
        f"{at}.wk.weight": (glm.index_head_dim, glm.hidden_size),
        f"{at}.weights_proj.weight": (glm.index_n_heads, glm.hidden_size),
        f"{at}.k_norm.weight": (glm.index_head_dim,),
        f"{at}.k_norm.bias": (glm.index_head_dim,),
    }


def _mixture(glm: GlmShape) -> dict[str, tuple[int, ...]]:
    hidden, inner = glm.hidden_size, glm.moe_intermediate_size
    shapes: dict[str, tuple[int, ...]] = {
        "mlp.gate.weight": (glm.n_routed_experts, hidden),
        "mlp.gate.e_score_correction_bias": (glm.n_routed_experts,),
    }
    for expert in range(glm.n_routed_experts):
        shapes |= _swiglu(f"mlp.experts.{expert}", hidden, inner)
    return shapes | _swiglu("mlp.shared_experts", hidden, inner * glm.n_shared_experts)


def _swiglu(at: str, hidden: int, inner: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{at}.gate_proj.weight": (inner, hidden),
        f"{at}.up_proj.weight": (inner, hidden),
        f"{at}.down_proj.weight": (hidden, inner),
    }


def _next_token(glm: GlmShape) -> dict[str, tuple[int, ...]]:
    hidden = glm.hidden_size
    return {
        "eh_proj.weight": (hidden, 2 * hidden),
        "enorm.weight": (hidden,),
        "hnorm.weight": (hidden,),
        "shared_head.norm.weight": (hidden,),
    }
