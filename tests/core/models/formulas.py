"""`glm_moe_dsa` in float64, straight from the published formulas: an oracle that shares no code with the family.

Attention is in its expanded form here: keys and values of every head are made, nothing is cached, absorbed or
streamed, and what is not selected is masked. Sources: DeepSeek-V2's report, section 2.1 (latent attention),
DeepSeek-V3.2-Exp's, section 2.1 (indexer), DeepSeek-V3's, section 2.1.2 (experts); GLM's rotations take interleaved
pairs in both places.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

Sets = list[list[set[int]]]


@dataclass
class Outcome:
    logits: torch.Tensor
    """float64 [tokens, vocabulary]"""
    kept: list[torch.Tensor]
    """By layer bool [tokens, tokens]: the tokens that a row attends to."""
    gaps: torch.Tensor
    """float64 [tokens]: by how much the last token or expert that was chosen beats the first that was not, in the layer
    where it is closest. Closer than the rounding of float32 either may be chosen, and either is right."""

    def sets(self, rows: Sequence[int]) -> Sets:
        """By layer and row, as positions."""
        return [[set(keep[row].nonzero().flatten().tolist()) for row in rows] for keep in self.kept]


def compute(
    config: Mapping[str, Any], stored: Mapping[str, torch.Tensor], ids: Sequence[int], dense: bool = False
) -> Outcome:
    """`dense`: every layer attends to all tokens before a row, whatever the indexer says."""
    weights = {name: tensor.double() for name, tensor in stored.items()}
    x = weights["model.embed_tokens.weight"][torch.tensor(ids)]
    kept = []
    gaps = torch.full((len(ids),), torch.inf, dtype=torch.float64)
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
            keep, gap = selected(config, own, h, latent, causal)
            gaps = gaps.minimum(gap)
        x = x + attention(config, own, h, latent, keep)
        h = rms(x, own["post_attention_layernorm.weight"], config["rms_norm_eps"])
        if "mlp.gate.weight" in own:
            mixed, gap = mixture(config, own, h)
            x, gaps = x + mixed, gaps.minimum(gap)
        else:
            x = x + swiglu(own, "mlp", h)
        kept.append(keep)
    final = rms(x, weights["model.norm.weight"], config["rms_norm_eps"])
    return Outcome(linear(weights, "lm_head", final), kept, gaps)


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
    out = h.new_empty(tokens, heads, v.shape[-1])
    for rows in blocks(tokens):
        for n in range(heads):
            scores = (q[n, rows] @ k[n].T / width**0.5).masked_fill(~keep[rows], -torch.inf)
            out[rows, n] = scores.softmax(-1) @ v[n]
    return linear(own, "self_attn.o_proj", out.reshape(tokens, -1))


def selected(
    config: Mapping[str, Any],
    own: Mapping[str, torch.Tensor],
    h: torch.Tensor,
    latent: torch.Tensor,
    causal: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(bool [tokens, tokens]: for each row the index_topk tokens of the highest scores, of equal ones the earlier;
    float64 [tokens]: the gaps)"""
    heads, dim, rope = config["index_n_heads"], config["index_head_dim"], config["qk_rope_head_dim"]
    topk = config["index_topk"]
    q = linear(own, "self_attn.indexer.wq_b", latent).view(len(h), heads, dim).transpose(0, 1)
    k = linear(own, "self_attn.indexer.wk", h)
    k = (k - k.mean(-1, keepdim=True)) / (k.var(-1, keepdim=True, correction=0) + 1e-6).sqrt()
    k = k * own["self_attn.indexer.k_norm.weight"] + own["self_attn.indexer.k_norm.bias"]
    q = torch.cat((turned(q[..., :rope], theta(config)), q[..., rope:]), -1)
    k = torch.cat((turned(k[..., :rope], theta(config)), k[..., rope:]), -1)
    weight = linear(own, "self_attn.indexer.weights_proj", h) / heads**0.5
    keep, gaps = torch.zeros_like(causal), h.new_full((len(h),), torch.inf)
    for rows in blocks(len(h)):
        scores = h.new_zeros(len(h[rows]), len(h))
        hinge = torch.full_like(scores, torch.inf)
        for n in range(heads):
            products, own_weight = q[n, rows] @ k.T / dim**0.5, weight[rows, n, None]
            scores += own_weight * products.relu()
            hinge = hinge.minimum((own_weight * products).abs())
        scores = scores.masked_fill(~causal[rows], -torch.inf)
        best = scores.sort(dim=-1, descending=True, stable=True)
        keep[rows] = keep[rows].scatter(1, best.indices[:, :topk], True) & causal[rows]
        if topk < len(h):
            last = best.values[:, topk - 1 : topk]
            gap = (last - best.values[:, topk : topk + 1]).nan_to_num(nan=torch.inf)
            # Of equal ones, all zeros of the ReLU, the earlier is taken. It is the same one in float32 when no other
            # score is next to zero, and none of them was cut off to zero by less than the rounding.
            apart = (scores - last).abs()
            apart = apart.where(apart > 0, hinge).nan_to_num(nan=torch.inf).amin(1, keepdim=True)
            gaps[rows] = gap.where(gap > 0, apart)[:, 0]
    return keep, gaps


def blocks(tokens: int) -> list[slice]:
    """So few rows at a time that their scores of a long prompt fit."""
    return [slice(i, i + 512) for i in range(0, tokens, 512)]


def mixture(
    config: Mapping[str, Any], own: Mapping[str, torch.Tensor], h: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """([tokens, hidden], float64 [tokens]: the gaps)"""
    probability, count = linear(own, "mlp.gate", h).sigmoid(), config["num_experts_per_tok"]
    best = (probability + own["mlp.gate.e_score_correction_bias"]).topk(count + 1)
    chosen, gaps = best.indices[:, :count], best.values[:, -2] - best.values[:, -1]
    weight = torch.zeros_like(probability).scatter(1, chosen, probability.gather(1, chosen))
    weight = weight / (weight.sum(-1, keepdim=True) + 1e-20) * config["routed_scaling_factor"]
    routed = [weight[:, e, None] * swiglu(own, f"mlp.experts.{e}", h) for e in range(config["n_routed_experts"])]
    return swiglu(own, "mlp.shared_experts", h) + sum(routed), gaps


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
