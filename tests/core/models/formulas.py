"""`glm_moe_dsa` in float64, straight from the published formulas: an oracle that shares no code with the family.

Attention is in its expanded form here: keys and values of every head are made, nothing is cached, absorbed or
streamed, and what is not selected is masked. Sources: DeepSeek-V2's report, section 2.1 (latent attention),
DeepSeek-V3.2-Exp's, section 2.1 (indexer), DeepSeek-V3's, section 2.1.2 (experts); GLM's rotations take interleaved
pairs in both places.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

Sets = list[list[set[int]]]


@dataclass
class Outcome:
    """logits float64 [tokens, vocabulary]; hidden [tokens, hidden] per layer; sets by layer and row."""

    logits: torch.Tensor
    hidden: list[torch.Tensor]
    sets: Sets = field(default_factory=list)


def compute(
    config: Mapping[str, Any], stored: Mapping[str, torch.Tensor], ids: Sequence[int], dense: bool = False
) -> Outcome:
    """`dense`: every layer attends to all tokens before a row, whatever the indexer says."""
    weights = {name: tensor.double() for name, tensor in stored.items()}
    x = weights["model.embed_tokens.weight"][torch.tensor(ids)]
    hidden: list[torch.Tensor] = []
    sets: Sets = []
    keep = causal = torch.ones(len(ids), len(ids), dtype=torch.bool).tril()
    for i, kind in enumerate(config["indexer_types"]):
        own = {
            name.removeprefix(f"model.layers.{i}."): tensor
            for name, tensor in weights.items()
            if name.startswith(f"model.layers.{i}.")
        }
        h = rms(x, own["input_layernorm.weight"], config["rms_norm_eps"])
        latent = rms(linear(own, "self_attn.q_a_proj", h), own["self_attn.q_a_layernorm.weight"], latent_eps(config))
        if kind == "full" and not dense:
            keep = selected(config, own, h, latent, causal)
        x = x + attention(config, own, h, latent, keep)
        h = rms(x, own["post_attention_layernorm.weight"], config["rms_norm_eps"])
        x = x + (mixture(config, own, h) if "mlp.gate.weight" in own else swiglu(own, "mlp", h))
        hidden.append(x)
        sets.append([set(row.nonzero().flatten().tolist()) for row in keep])
    final = rms(x, weights["model.norm.weight"], config["rms_norm_eps"])
    return Outcome(linear(weights, "lm_head", final), hidden, sets)


def attention(
    config: Mapping[str, Any],
    own: Mapping[str, torch.Tensor],
    h: torch.Tensor,
    latent: torch.Tensor,
    keep: torch.Tensor,
) -> torch.Tensor:
    """h: [tokens, hidden]; latent: [tokens, q rank]; keep: bool [tokens, tokens]."""
    heads, nope, rank = config["num_attention_heads"], config["qk_nope_head_dim"], config["kv_lora_rank"]
    tokens, width = len(h), nope + config["qk_rope_head_dim"]
    q = linear(own, "self_attn.q_b_proj", latent).view(tokens, heads, width).transpose(0, 1)
    q = torch.cat((q[..., :nope], turned(q[..., nope:], theta(config))), -1)
    down = linear(own, "self_attn.kv_a_proj_with_mqa", h)
    c = rms(down[:, :rank], own["self_attn.kv_a_layernorm.weight"], latent_eps(config))
    shared = turned(down[:, rank:], theta(config)).expand(heads, -1, -1)
    up = linear(own, "self_attn.kv_b_proj", c).view(tokens, heads, -1).transpose(0, 1)
    k, v = torch.cat((up[..., :nope], shared), -1), up[..., nope:]
    out = torch.stack(
        [  # head by head: a square of a long prompt is large
            ((q[n] @ k[n].T) / width**0.5).masked_fill(~keep, -torch.inf).softmax(-1) @ v[n] for n in range(heads)
        ],
        1,
    )
    return linear(own, "self_attn.o_proj", out.reshape(tokens, -1))


def selected(
    config: Mapping[str, Any],
    own: Mapping[str, torch.Tensor],
    h: torch.Tensor,
    latent: torch.Tensor,
    causal: torch.Tensor,
) -> torch.Tensor:
    """bool [tokens, tokens]: for each row the index_topk tokens of the highest scores, of equal ones the earlier."""
    heads, dim, rope = config["index_n_heads"], config["index_head_dim"], config["qk_rope_head_dim"]
    q = linear(own, "self_attn.indexer.wq_b", latent).view(len(h), heads, dim).transpose(0, 1)
    k = linear(own, "self_attn.indexer.wk", h)
    k = (k - k.mean(-1, keepdim=True)) / (k.var(-1, keepdim=True, correction=0) + 1e-6).sqrt()
    k = k * own["self_attn.indexer.k_norm.weight"] + own["self_attn.indexer.k_norm.bias"]
    q = torch.cat((turned(q[..., :rope], theta(config)), q[..., rope:]), -1)
    k = torch.cat((turned(k[..., :rope], theta(config)), k[..., rope:]), -1)
    weight = linear(own, "self_attn.indexer.weights_proj", h) / heads**0.5
    scores = torch.zeros(len(h), len(h), dtype=torch.float64)
    for n in range(heads):
        scores += weight[:, n, None] * (q[n] @ k.T / dim**0.5).relu()
    scores = scores.masked_fill(~causal, -torch.inf)
    best = scores.sort(dim=-1, descending=True, stable=True).indices[:, : config["index_topk"]]
    return torch.zeros_like(causal).scatter(1, best, True) & causal


def mixture(config: Mapping[str, Any], own: Mapping[str, torch.Tensor], h: torch.Tensor) -> torch.Tensor:
    probability = linear(own, "mlp.gate", h).sigmoid()
    chosen = (probability + own["mlp.gate.e_score_correction_bias"]).topk(config["num_experts_per_tok"]).indices
    weight = torch.zeros_like(probability).scatter(1, chosen, probability.gather(1, chosen))
    weight = weight / (weight.sum(-1, keepdim=True) + 1e-20) * config["routed_scaling_factor"]
    routed = [weight[:, e, None] * swiglu(own, f"mlp.experts.{e}", h) for e in range(config["n_routed_experts"])]
    return swiglu(own, "mlp.shared_experts", h) + sum(routed)


def swiglu(own: Mapping[str, torch.Tensor], name: str, h: torch.Tensor) -> torch.Tensor:
    return linear(
        own, f"{name}.down_proj", F.silu(linear(own, f"{name}.gate_proj", h)) * linear(own, f"{name}.up_proj", h)
    )


def turned(x: torch.Tensor, base: float) -> torch.Tensor:
    """x: [..., tokens, dim], row t turned by t: as complex numbers the pairs (x0, x1), (x2, x3), ... times e^(i angle).

    Angles are float32, as every implementation has them: their rounding is part of the model.
    """
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    dim = x.shape[-1]
    speed = 1.0 / base ** (torch.arange(0, dim, 2).float() / dim)
    angles = (torch.arange(x.shape[-2]).float()[:, None] * speed).double()
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)


def rms(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def linear(own: Mapping[str, torch.Tensor], name: str, x: torch.Tensor) -> torch.Tensor:
    return x @ own[f"{name}.weight"].T


def theta(config: Mapping[str, Any]) -> float:
    return float(config["rope_parameters"]["rope_theta"])


def latent_eps(config: Mapping[str, Any]) -> float:
    return float(config.get("latent_norm_eps", config["rms_norm_eps"]))
