"""The random weights of `golden/`, drawn again, and the same kind of weights for other sizes.

The golden outputs were computed by transformers 5.24 and checked by a second forward pass written from the formulas.
Weights are megabytes and come out of a seed; only those outputs are kept, with the sums of the weights they belong to.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from glmserve.models.glm_moe_dsa.config import GlmConfig, read_config
from glmserve.models.glm_moe_dsa.layout import BIAS, at
from safetensors.torch import load_file, save_file

GOLDEN = Path(__file__).parent / "golden"
OUTPUTS = GOLDEN / "tiny_glm.safetensors"
SEED = 0
Tensors = dict[str, torch.Tensor]


def golden_config() -> dict[str, Any]:
    """As published, but for the epsilon of the latent norms, which transformers' class sets and no file says."""
    found: dict[str, Any] = json.loads((GOLDEN / "config.json").read_text("utf-8"))
    return found | {"latent_norm_eps": 1e-6}


def golden_outputs() -> Tensors:
    """prompt_ids int64 [24] and generated_ids int64 [12]; float32 logits [24, vocabulary] of the prompt and
    decode_logits [12, vocabulary] that chose the generated ones; hidden.N [24, hidden]: N = 0 embedded, N = layers past
    the final norm, else what layer N - 1 returned; int32 topk.N [24, index_topk], what layer N attended to; float64
    weights, the sums of the tensors."""
    return load_file(OUTPUTS)


def sums(tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """float64 [tensors], by name: what tells other weights, and not a last bit that another processor draws."""
    return torch.stack([tensors[name].double().sum() for name in sorted(tensors)])


def write_seeded(directory: Path, config: Mapping[str, Any], seed: int = SEED) -> Tensors:
    tensors = seeded_tensors(read_config(config), seed)
    write(directory, config, tensors)
    return tensors


def write(directory: Path, config: Mapping[str, Any], tensors: Tensors) -> None:
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(config), "utf-8")


def seeded_tensors(config: GlmConfig, seed: int = SEED) -> Tensors:
    """Large enough that selections, experts and rotations matter, under the names of the published checkpoints.

    The order of drawing is that of the parameters in transformers, which holds a layer's experts in two tensors.
    """
    drawing = torch.Generator().manual_seed(seed)
    found: Tensors = {"model.embed_tokens.weight": torch.randn(config.vocab_size, config.hidden, generator=drawing)}

    def matrix(name: str, *shape: int) -> torch.Tensor:
        found[f"{name}.weight"] = torch.randn(*shape, generator=drawing) / math.sqrt(shape[-1])
        return found[f"{name}.weight"]

    def norm(name: str, width: int) -> None:
        found[f"{name}.weight"] = 1.0 + 0.2 * torch.randn(width, generator=drawing)

    def swiglu(name: str, inner: int) -> None:
        matrix(f"{name}.gate_proj", inner, config.hidden)
        matrix(f"{name}.up_proj", inner, config.hidden)
        matrix(f"{name}.down_proj", config.hidden, inner)

    for i, (full, sparse) in enumerate(zip(config.full_indexer, config.sparse_mlp, strict=True)):
        attention, mlp = f"{at(i)}.self_attn", f"{at(i)}.mlp"
        matrix(f"{attention}.q_a_proj", config.q_rank, config.hidden)
        norm(f"{attention}.q_a_layernorm", config.q_rank)
        matrix(f"{attention}.q_b_proj", config.heads * (config.nope_dim + config.rope_dim), config.q_rank)
        matrix(f"{attention}.kv_a_proj_with_mqa", config.latent_width, config.hidden)
        norm(f"{attention}.kv_a_layernorm", config.kv_rank)
        matrix(f"{attention}.kv_b_proj", config.heads * (config.nope_dim + config.value_dim), config.kv_rank)
        matrix(f"{attention}.o_proj", config.hidden, config.heads * config.value_dim)
        if full:
            matrix(f"{attention}.indexer.wq_b", config.index_heads * config.index_dim, config.q_rank)
            matrix(f"{attention}.indexer.wk", config.index_dim, config.hidden)
            norm(f"{attention}.indexer.k_norm", config.index_dim)
            found[f"{attention}.indexer.k_norm.bias"] = 0.2 * torch.randn(config.index_dim, generator=drawing)
            matrix(f"{attention}.indexer.weights_proj", config.index_heads, config.hidden)
        if sparse:
            fused = torch.randn(config.experts, 2 * config.expert_inner, config.hidden, generator=drawing)
            down = torch.randn(config.experts, config.hidden, config.expert_inner, generator=drawing)
            for e in range(config.experts):
                gate, up = (fused[e] / math.sqrt(config.hidden)).chunk(2)
                found[f"{mlp}.experts.{e}.gate_proj.weight"] = gate.clone()
                found[f"{mlp}.experts.{e}.up_proj.weight"] = up.clone()
                found[f"{mlp}.experts.{e}.down_proj.weight"] = down[e] / math.sqrt(config.expert_inner)
            matrix(f"{mlp}.gate", config.experts, config.hidden)
            swiglu(f"{mlp}.shared_experts", config.expert_inner * config.shared_experts)
        else:
            swiglu(mlp, config.dense_inner)
        norm(f"{at(i)}.input_layernorm", config.hidden)
        norm(f"{at(i)}.post_attention_layernorm", config.hidden)
    norm("model.norm", config.hidden)
    matrix("lm_head", config.vocab_size, config.hidden)
    for i, sparse in enumerate(config.sparse_mlp):
        if sparse:  # near 7, as in real checkpoints, where 16 bits would leave few distinct values
            found[f"{at(i)}.mlp.gate.{BIAS}"] = 6.94 + 0.06 * torch.randn(config.experts, generator=drawing)
    return found
