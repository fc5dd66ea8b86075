"""The model that is trained: `glm_moe_dsa` in plain torch, for whole sequences and without a cache.

Written from the published formulas and not from the server's code, so that the two can be compared. Attention is in its
expanded form. Experts are stacked in one tensor each; `recipe.checkpoint` splits them under their published names.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Config:
    """Sizes under their names of config.json. Widths of projections are multiples of 128 where GLM-5.3's are."""

    vocab_size: int = 1024
    hidden_size: int = 128
    intermediate_size: int = 512
    moe_intermediate_size: int = 128
    num_hidden_layers: int = 5
    num_attention_heads: int = 4
    q_lora_rank: int = 128
    kv_lora_rank: int = 64
    qk_nope_head_dim: int = 48
    qk_rope_head_dim: int = 16
    v_head_dim: int = 64
    n_routed_experts: int = 8
    num_experts_per_tok: int = 2
    routed_scaling_factor: float = 2.5
    first_k_dense_replace: int = 1
    index_topk: int = 256
    index_n_heads: int = 4
    index_head_dim: int = 32
    index_topk_freq: int = 2
    index_skip_topk_offset: int = 2
    rope_theta: float = 8e6
    rms_norm_eps: float = 1e-5

    @property
    def qk_head_dim(self) -> int:
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def indexer_types(self) -> list[str]:
        """A full layer selects keys; a shared one uses the selection of the nearest full layer before it."""
        offset, every = self.index_skip_topk_offset, self.index_topk_freq
        return [
            "full" if max(layer - offset + 1, 0) % every == 0 else "shared" for layer in range(self.num_hidden_layers)
        ]


CONFIG: Final = Config()
KEY_NORM_EPS: Final = 1e-6


def linear(rows: int, columns: int, gain: float = 1.0) -> nn.Parameter:
    """A weight [rows, columns] that keeps the size of its input at gain 1."""
    return nn.Parameter(torch.randn(rows, columns) * gain / math.sqrt(columns))


class RmsNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


def by_head(x: Tensor, heads: int) -> Tensor:
    """[batch, tokens, heads * width] -> [batch, heads, tokens, width]."""
    return x.view(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)


def rotate(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Interleaved RoPE of x [..., positions, width]: the pairs are (x0, x1), (x2, x3), ..."""
    width = x.shape[-1]
    angles = positions.float()[:, None] * theta ** (-torch.arange(0, width, 2).float() / width)
    cos, sin = angles.cos(), angles.sin()
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), -1).flatten(-2)


class Indexer(nn.Module):
    """Scores every earlier token for every token, before the top-k."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.c = c
        self.wq_b = linear(c.index_n_heads * c.index_head_dim, c.q_lora_rank)
        self.wk = linear(c.index_head_dim, c.hidden_size)
        self.k_norm = nn.LayerNorm(c.index_head_dim, eps=KEY_NORM_EPS)
        self.weights_proj = linear(c.index_n_heads, c.hidden_size)

    def forward(self, h: Tensor, q_latent: Tensor, positions: Tensor) -> Tensor:
        """[batch, tokens, tokens]; what lies ahead is not masked."""
        c, rope = self.c, self.c.qk_rope_head_dim
        q = by_head(q_latent @ self.wq_b.T, c.index_n_heads)
        k = self.k_norm(h @ self.wk.T)
        # The rotated part comes first here, and last in the attention.
        q = torch.cat((rotate(q[..., :rope], positions, c.rope_theta), q[..., rope:]), -1)
        k = torch.cat((rotate(k[..., :rope], positions, c.rope_theta), k[..., rope:]), -1)
        weights = (h @ self.weights_proj.T) * c.index_n_heads**-0.5
        scores = torch.relu(q @ k[:, None].transpose(-1, -2) * c.index_head_dim**-0.5)
        return torch.einsum("bth,bhts->bts", weights, scores)


class Attention(nn.Module):
    def __init__(self, c: Config, full: bool) -> None:
        super().__init__()
        self.c = c
        self.q_a_proj = linear(c.q_lora_rank, c.hidden_size)
        self.q_a_layernorm = RmsNorm(c.q_lora_rank, c.rms_norm_eps)
        self.q_b_proj = linear(c.num_attention_heads * c.qk_head_dim, c.q_lora_rank)
        self.kv_a_proj_with_mqa = linear(c.kv_lora_rank + c.qk_rope_head_dim, c.hidden_size)
        self.kv_a_layernorm = RmsNorm(c.kv_lora_rank, c.rms_norm_eps)
        self.kv_b_proj = linear(c.num_attention_heads * (c.qk_nope_head_dim + c.v_head_dim), c.kv_lora_rank)
        self.o_proj = linear(c.hidden_size, c.num_attention_heads * c.v_head_dim, 0.2)
        self.indexer = Indexer(c) if full else None

    def project(self, h: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The query latent [batch, tokens, rank] and q, k, v [batch, heads, tokens, width]."""
        c, heads, nope, theta = self.c, self.c.num_attention_heads, self.c.qk_nope_head_dim, self.c.rope_theta
        latent = self.q_a_layernorm(h @ self.q_a_proj.T)
        q = by_head(latent @ self.q_b_proj.T, heads)
        q = torch.cat((q[..., :nope], rotate(q[..., nope:], positions, theta)), -1)
        kv_latent, k_rope = torch.tensor_split(h @ self.kv_a_proj_with_mqa.T, [c.kv_lora_rank], -1)
        kv = by_head(self.kv_a_layernorm(kv_latent) @ self.kv_b_proj.T, heads)
        k_nope, v = torch.tensor_split(kv, [nope], -1)
        shared = rotate(k_rope, positions, theta)[:, None].expand(-1, heads, -1, -1)
        return latent, q, torch.cat((k_nope, shared), -1), v

    def output(self, attended: Tensor) -> Tensor:
        """[batch, heads, tokens, width] -> [batch, tokens, hidden]."""
        return attended.transpose(1, 2).flatten(-2) @ self.o_proj.T

    def forward(
        self, h: Tensor, positions: Tensor, selected: Tensor | None, sparse: bool
    ) -> tuple[Tensor, Tensor | None]:
        """The output, and which keys [batch, tokens, tokens] each token attends to: None means all before it."""
        latent, q, k, v = self.project(h, positions)
        if not sparse or h.shape[1] <= self.c.index_topk:
            return self.output(F.scaled_dot_product_attention(q, k, v, is_causal=True)), None
        if self.indexer is not None:
            selected = select(self.indexer(h, latent, positions), self.c.index_topk)
        assert selected is not None, "the first layer is a full one"
        return self.output(F.scaled_dot_product_attention(q, k, v, attn_mask=selected[:, None])), selected


def causal(tokens: int) -> Tensor:
    return torch.ones(tokens, tokens, dtype=torch.bool).tril()


def select(scores: Tensor, count: int) -> Tensor:
    """Which keys are among the `count` best of those up to the query itself. Of equal ones the earlier is better.

    Scores that are equal do occur: where no head's product is positive, they are 0 exactly.
    """
    mask = causal(scores.shape[-1])
    best = scores.masked_fill(~mask, -torch.inf).sort(dim=-1, descending=True, stable=True).indices[..., :count]
    return torch.zeros_like(mask.expand_as(scores)).scatter(-1, best, True) & mask


class Mlp(nn.Module):
    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = linear(width, hidden), linear(width, hidden)
        self.down_proj = linear(hidden, width, 0.2)

    def forward(self, x: Tensor) -> Tensor:
        return (F.silu(x @ self.gate_proj.T) * (x @ self.up_proj.T)) @ self.down_proj.T


class Experts(nn.Module):
    """All routed experts of a layer, stacked."""

    def __init__(self, count: int, hidden: int, width: int) -> None:
        super().__init__()
        self.gate_proj = nn.Parameter(torch.randn(count, width, hidden) / math.sqrt(hidden))
        self.up_proj = nn.Parameter(torch.randn(count, width, hidden) / math.sqrt(hidden))
        self.down_proj = nn.Parameter(torch.randn(count, hidden, width) * 0.2 / math.sqrt(width))


class Router(nn.Module):
    e_score_correction_bias: Tensor

    def __init__(self, count: int, hidden: int) -> None:
        super().__init__()
        self.weight = linear(count, hidden)
        # Moved by the load of the experts and not by a gradient.
        self.register_buffer("e_score_correction_bias", torch.zeros(count))


class Moe(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.c = c
        self.gate = Router(c.n_routed_experts, c.hidden_size)
        self.experts = Experts(c.n_routed_experts, c.hidden_size, c.moe_intermediate_size)
        self.shared_experts = Mlp(c.hidden_size, c.moe_intermediate_size)
        self.load = torch.zeros(c.n_routed_experts)
        """Tokens that each expert got since the last step of training."""

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        scores = torch.sigmoid(rows @ self.gate.weight.T)
        chosen = (scores.detach() + self.gate.e_score_correction_bias).topk(self.c.num_experts_per_tok, -1).indices
        weights = scores.gather(1, chosen)
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20) * self.c.routed_scaling_factor
        y: Tensor = self.shared_experts(rows)
        counts = torch.bincount(chosen.flatten(), minlength=self.c.n_routed_experts)
        self.load += counts
        # One slice of the sorted pairs of (row, choice) for each expert.
        order = chosen.flatten().argsort(stable=True)
        at, weights = order // self.c.num_experts_per_tok, weights.flatten()[order]
        parts = torch.tensor_split(rows[at], counts.cumsum(0)[:-1].tolist())
        e = self.experts
        done = [
            (F.silu(part @ e.gate_proj[n].T) * (part @ e.up_proj[n].T)) @ e.down_proj[n].T
            for n, part in enumerate(parts)
        ]
        y = y.index_add(0, at, torch.cat(done) * weights[:, None])
        return y.view(x.shape)


class Layer(nn.Module):
    def __init__(self, c: Config, dense: bool, full: bool) -> None:
        super().__init__()
        self.input_layernorm = RmsNorm(c.hidden_size, c.rms_norm_eps)
        self.self_attn = Attention(c, full)
        self.post_attention_layernorm = RmsNorm(c.hidden_size, c.rms_norm_eps)
        self.mlp: Mlp | Moe = Mlp(c.hidden_size, c.intermediate_size) if dense else Moe(c)

    def forward(
        self, x: Tensor, positions: Tensor, selected: Tensor | None, sparse: bool
    ) -> tuple[Tensor, Tensor | None]:
        attended, selected = self.self_attn(self.input_layernorm(x), positions, selected, sparse)
        x = x + attended
        return x + self.mlp(self.post_attention_layernorm(x)), selected


class Model(nn.Module):
    def __init__(self, c: Config = CONFIG) -> None:
        super().__init__()
        self.c = c
        self.embed_tokens = nn.Parameter(torch.randn(c.vocab_size, c.hidden_size) * 0.3)
        self.layers = nn.ModuleList(
            Layer(c, dense=n < c.first_k_dense_replace, full=kind == "full") for n, kind in enumerate(c.indexer_types)
        )
        self.norm = RmsNorm(c.hidden_size, c.rms_norm_eps)
        self.lm_head = linear(c.vocab_size, c.hidden_size, 0.2)

    def forward(self, ids: Tensor, sparse: bool = False) -> Tensor:
        """The normalised hidden state [batch, tokens, hidden] of ids [batch, tokens]. `sparse` attends as served."""
        x, positions, selected = self.embed_tokens[ids], torch.arange(ids.shape[1]), None
        for layer in self.layers:
            x, selected = layer(x, positions, selected, sparse)
        return self.norm(x)  # type: ignore[no-any-return]

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden @ self.lm_head.T
