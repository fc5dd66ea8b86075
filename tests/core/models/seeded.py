"""The random weights of `golden/`, drawn again, and the same kind of weights for other sizes.

The golden outputs were computed by transformers 5.24 and checked by a second forward pass written from the formulas.
Weights are megabytes and come out of a seed; only those outputs are kept, with the sums of the weights they belong to.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
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
    weights, the sums of the tensors. Of the next-token layer, rows 0 to 22: mtp_logits, mtp_hidden_normed, mtp_topk."""
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
    draw = Drawing(config, drawing, found)
    for i, (full, sparse) in enumerate(zip(config.full_indexer, config.sparse_mlp, strict=True)):
        mlp = f"{at(i)}.mlp"
        draw.attention(i, full)
        if sparse:
            fused = torch.randn(config.experts, 2 * config.expert_inner, config.hidden, generator=drawing)
            down = torch.randn(config.experts, config.hidden, config.expert_inner, generator=drawing)
            for e in range(config.experts):
                gate, up = (fused[e] / math.sqrt(config.hidden)).chunk(2)
                found[f"{mlp}.experts.{e}.gate_proj.weight"] = gate.clone()
                found[f"{mlp}.experts.{e}.up_proj.weight"] = up.clone()
                found[f"{mlp}.experts.{e}.down_proj.weight"] = down[e] / math.sqrt(config.expert_inner)
            draw.matrix(f"{mlp}.gate", config.experts, config.hidden)
            draw.swiglu(f"{mlp}.shared_experts", config.expert_inner * config.shared_experts)
        else:
            draw.swiglu(mlp, config.dense_inner)
        draw.norm(f"{at(i)}.input_layernorm", config.hidden)
        draw.norm(f"{at(i)}.post_attention_layernorm", config.hidden)
    draw.norm("model.norm", config.hidden)
    draw.matrix("lm_head", config.vocab_size, config.hidden)
    for i, sparse in enumerate(config.sparse_mlp):
        if sparse:  # near 7, as in real checkpoints, where 16 bits would leave few distinct values
            draw.choice_bias(i)
    return found | seeded_nextn(config, seed) if config.nextn_layers else found


def seeded_nextn(config: GlmConfig, seed: int = SEED) -> Tensors:
    """Of the next-token-prediction layer, from a seed of its own."""
    found: Tensors = {}
    draw = Drawing(config, torch.Generator().manual_seed(seed + 1), found)
    prefix = at(config.layers)
    draw.norm(f"{prefix}.enorm", config.hidden)
    draw.norm(f"{prefix}.hnorm", config.hidden)
    draw.matrix(f"{prefix}.eh_proj", config.hidden, 2 * config.hidden)
    for name in ("shared_head.norm", "input_layernorm", "post_attention_layernorm"):
        draw.norm(f"{prefix}.{name}", config.hidden)
    draw.attention(config.layers, full=True)
    draw.matrix(f"{prefix}.mlp.gate", config.experts, config.hidden)
    draw.choice_bias(config.layers)
    draw.swiglu(f"{prefix}.mlp.shared_experts", config.expert_inner * config.shared_experts)
    for e in range(config.experts):
        draw.swiglu(f"{prefix}.mlp.experts.{e}", config.expert_inner)
    return found


@dataclass
class Drawing:
    """Draws tensors one after another, and puts them under their names."""

    config: GlmConfig
    generator: torch.Generator
    found: Tensors

    def matrix(self, name: str, *shape: int) -> None:
        self.found[f"{name}.weight"] = torch.randn(*shape, generator=self.generator) / math.sqrt(shape[-1])

    def norm(self, name: str, width: int) -> None:
        self.found[f"{name}.weight"] = 1.0 + 0.2 * torch.randn(width, generator=self.generator)

    def choice_bias(self, index: int) -> None:
        bias = 6.94 + 0.06 * torch.randn(self.config.experts, generator=self.generator)
        self.found[f"{at(index)}.mlp.gate.{BIAS}"] = bias

    def swiglu(self, name: str, inner: int) -> None:
        self.matrix(f"{name}.gate_proj", inner, self.config.hidden)
        self.matrix(f"{name}.up_proj", inner, self.config.hidden)
        self.matrix(f"{name}.down_proj", self.config.hidden, inner)

    def attention(self, index: int, full: bool) -> None:
        config, prefix = self.config, f"{at(index)}.self_attn"
        self.matrix(f"{prefix}.q_a_proj", config.q_rank, config.hidden)
        self.norm(f"{prefix}.q_a_layernorm", config.q_rank)
        self.matrix(f"{prefix}.q_b_proj", config.heads * (config.nope_dim + config.rope_dim), config.q_rank)
        self.matrix(f"{prefix}.kv_a_proj_with_mqa", config.latent_width, config.hidden)
        self.norm(f"{prefix}.kv_a_layernorm", config.kv_rank)
        self.matrix(f"{prefix}.kv_b_proj", config.heads * (config.nope_dim + config.value_dim), config.kv_rank)
        self.matrix(f"{prefix}.o_proj", config.hidden, config.heads * config.value_dim)
        if full:
            indexer = f"{prefix}.indexer"
            self.matrix(f"{indexer}.wq_b", config.index_heads * config.index_dim, config.q_rank)
            self.matrix(f"{indexer}.wk", config.index_dim, config.hidden)
            self.norm(f"{indexer}.k_norm", config.index_dim)
            self.found[f"{indexer}.k_norm.bias"] = 0.2 * torch.randn(config.index_dim, generator=self.generator)
            self.matrix(f"{indexer}.weights_proj", config.index_heads, config.hidden)
