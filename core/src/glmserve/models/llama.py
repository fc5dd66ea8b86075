"""Family `llama`: Llama 2 and 3, SmolLM2, Mistral-shaped models (RMSNorm, rotary GQA, SwiGLU, tied or own head)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F

from glmserve.api import (
    Checkpoint,
    CheckpointError,
    ConfigError,
    ForwardBatch,
    ForwardOutput,
    Group,
    LinearSpec,
    Model,
    ModelFamily,
    ModelInfo,
    PagedTensor,
    Parallel,
    Quantization,
    Shard,
)

from .activations import swiglu
from .attention import Place, attend, places, write
from .config import Keys
from .cuts import Heads, attention, spread
from .entries import PLAIN, check_kv_dtype
from .head import VocabularyHead
from .layers import Layers
from .rope import Rotary, inverse_frequencies, rotate
from .tensors import bias_shapes, check_tensors

EMBEDDING = "model.embed_tokens.weight"
ROPE_DIVISORS = "rope_freqs.weight"
"""GGUF stores the llama3 scaling as divisors of the frequencies."""


class Llama(ModelFamily):
    name = "llama"
    architectures = frozenset({"LlamaForCausalLM", "MistralForCausalLM"})
    capabilities = frozenset({"taps"})

    def describe(self, config: Mapping[str, Any], kv_dtype: str) -> ModelInfo:
        check_kv_dtype(kv_dtype, PLAIN, self.name)
        keys = Keys(config)
        hidden, layers = keys.positive("hidden_size"), keys.positive("num_hidden_layers")
        heads = keys.positive("num_attention_heads")
        kv_heads = keys.positive("num_key_value_heads", heads)
        dim = keys.positive("head_dim", hidden // heads)
        inner, vocab = keys.positive("intermediate_size"), keys.positive("vocab_size")
        max_context = keys.positive("max_position_embeddings")
        if heads % kv_heads or dim % 2:
            raise CheckpointError(f"{heads} query heads of {dim} do not divide over {kv_heads} key-value heads.")
        if config.get("hidden_act", "silu") != "silu":
            raise CheckpointError(f"hidden_act is {config['hidden_act']!r}; the llama family computes silu only.")
        window = config.get("sliding_window")
        if window is not None and window < max_context:
            raise CheckpointError(
                f"sliding_window is {window}, less than the context of {max_context}; the llama family attends to all."
            )
        inverse_frequencies(config, dim)
        linears = []
        for i in range(layers):
            at = f"model.layers.{i}"
            qkv = tuple(f"{at}.self_attn.{p}_proj" for p in "qkv")
            gate_up = tuple(f"{at}.mlp.{p}_proj" for p in ("gate", "up"))
            linears += [
                LinearSpec(f"{at}.qkv", qkv, (heads * dim, kv_heads * dim, kv_heads * dim), hidden),
                LinearSpec(f"{at}.o", (f"{at}.self_attn.o_proj",), (hidden,), heads * dim),
                LinearSpec(f"{at}.gate_up", gate_up, (inner, inner), hidden),
                LinearSpec(f"{at}.down", (f"{at}.mlp.down_proj",), (hidden,), inner),
            ]
        head = EMBEDDING.removesuffix(".weight") if config.get("tie_word_embeddings") else "lm_head"
        linears.append(LinearSpec("head", (head,), (vocab,), hidden))
        return ModelInfo(
            family=self.name,
            vocab_size=vocab,
            hidden_size=hidden,
            num_layers=layers,
            max_context=max_context,
            paged=tuple(
                PagedTensor(f"layers.{i}.{p}", (kv_heads, dim), kv_dtype) for i in range(layers) for p in ("k", "v")
            ),
            linears=tuple(linears),
            embedding=EMBEDDING,
            eos_ids=keys.token_ids("eos_token_id"),
        )

    def load(
        self,
        checkpoint: Checkpoint,
        quantization: Quantization,
        info: ModelInfo,
        parallel: Parallel = Parallel(),  # noqa: B008 - immutable
        resident: bool = True,
    ) -> Model:
        if parallel.context > 1:
            raise ConfigError(
                f"parallel.context is {parallel.context}, but family {self.name!r} cuts its cache by heads, not by "
                "positions; choose 1."
            )
        _check_tensors(checkpoint, quantization, info)
        return LlamaModel(checkpoint, quantization, info, parallel.group, resident)


def _check_tensors(checkpoint: Checkpoint, quantization: Quantization, info: ModelInfo) -> None:
    """Every tensor has its place, every place its tensor, every linear layer all its biases or none."""
    hidden, dim = info.hidden_size, info.paged[0].per_token[1]
    needed: dict[str, tuple[int, ...]] = {EMBEDDING: (info.vocab_size, hidden), "model.norm.weight": (hidden,)}
    for i in range(info.num_layers):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            needed[f"model.layers.{i}.{norm}.weight"] = (hidden,)
    for spec in info.linears:
        needed |= quantization.stored_tensors(checkpoint, spec)
    tied = "lm_head.weight" not in needed
    required = set()
    if checkpoint.config.get("attention_bias"):
        required |= {"q_proj", "k_proj", "v_proj", "o_proj"}
    if checkpoint.config.get("mlp_bias"):
        required |= {"gate_proj", "up_proj", "down_proj"}
    # A tied head is the embedding, which has no bias.
    biases = bias_shapes(checkpoint, info.linears[:-1] if tied else info.linears, required)
    check_tensors(
        checkpoint,
        {**needed, **biases["needed"]},
        {**biases["optional"], ROPE_DIVISORS: (dim // 2,)},
        ignored=("lm_head.weight",) if tied else (),  # some checkpoints store the tied head a second time
        suffixes="rotary_emb.inv_freq",
    )


@dataclass(frozen=True)
class _Call:
    """What all layers of a call share."""

    cosine: torch.Tensor
    sine: torch.Tensor
    where: Sequence[Place]
    slots: torch.Tensor
    chunk: bool
    pools: Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class _Part:
    """What one rank computes of every decoder layer."""

    group: Group
    heads: Heads
    dim: int
    inner: range
    """Intermediate columns of the MLP."""

    @staticmethod
    def of(info: ModelInfo, group: Group) -> _Part:
        """info: of the whole model. Raises ConfigError when there is not something for every rank."""
        kv_heads, dim = info.paged[0].per_token
        _, o, _, down = info.linears[:4]
        heads = attention(o.in_features // dim, kv_heads, group.size)
        inner = spread(down.in_features, group.size, "intermediate columns")
        return _Part(group, heads[group.rank], dim, inner[group.rank])

    def shards(self, info: ModelInfo, index: int) -> list[tuple[LinearSpec, Shard]]:
        """The layer's query-key-value, output, gate-up and down projections."""
        qkv, o, gate_up, down = info.linears[4 * index : 4 * index + 4]
        query, _, _ = rows = self.heads.rows(self.dim)
        return [
            (qkv, Shard(rows, range(qkv.in_features))),
            (o, Shard((range(o.out_features),), query)),
            (gate_up, Shard((self.inner, self.inner), range(gate_up.in_features))),
            (down, Shard((range(down.out_features),), self.inner)),
        ]


class _Layer:
    """One rank's part of a decoder layer."""

    def __init__(
        self, checkpoint: Checkpoint, quantization: Quantization, info: ModelInfo, part: _Part, index: int
    ) -> None:
        at = f"model.layers.{index}"
        self._index, self._kv_heads, self._dim, self._group = index, len(part.heads.kv), part.dim, part.group
        self._eps = eps_of(checkpoint)
        self._attention_norm = quantization.load_vector(checkpoint, f"{at}.input_layernorm.weight")
        self._mlp_norm = quantization.load_vector(checkpoint, f"{at}.post_attention_layernorm.weight")
        linears = [quantization.load_linear(checkpoint, spec, shard) for spec, shard in part.shards(info, index)]
        self._qkv, self._o, self._gate_up, self._down = linears
        self.nbytes = sum(linear.nbytes for linear in linears)
        self.row_invariant = all(linear.row_invariant for linear in linears)

    def __call__(self, x: torch.Tensor, call: _Call) -> torch.Tensor:
        """x: [rows, hidden], the same on every rank, as is the result."""
        heads = self._qkv(normed(x, self._attention_norm, self._eps)).view(len(x), -1, self._dim)
        x = x + self._group.sum("attention", self._o(self._attend(heads, call)))
        gate_up = self._gate_up(normed(x, self._mlp_norm, self._eps))
        return x + self._group.sum("mlp", self._down(swiglu(gate_up, call.chunk)))

    def _attend(self, heads: torch.Tensor, call: _Call) -> torch.Tensor:
        """heads: [rows, this rank's query, key and value heads, dim]. Returns [rows, query heads * dim]."""
        rotated = rotate(heads[:, : -self._kv_heads], call.cosine, call.sine)
        keys, values = (call.pools[f"layers.{self._index}.{p}"] for p in ("k", "v"))
        write(keys, call.slots, rotated[:, -self._kv_heads :])
        write(values, call.slots, heads[:, -self._kv_heads :])
        return attend(rotated[:, : -self._kv_heads], keys, values, call.where)


class LlamaModel(Model):
    def __init__(
        self,
        checkpoint: Checkpoint,
        quantization: Quantization,
        info: ModelInfo,
        group: Group,
        resident: bool,
    ) -> None:
        """info: of the whole model."""
        part = _Part.of(info, group)
        own = tuple(replace(tensor, per_token=(len(part.heads.kv), part.dim)) for tensor in info.paged)
        self.info = replace(info, paged=own)
        self._eps = eps_of(checkpoint)
        frequencies, factor = inverse_frequencies(checkpoint.config, part.dim)
        if ROPE_DIVISORS in checkpoint.tensors:
            frequencies = frequencies / quantization.load_vector(checkpoint, ROPE_DIVISORS)
        self._rotary = Rotary(frequencies, factor)
        self._embedding = quantization.load_embedding(checkpoint, info.embedding)
        self._norm = quantization.load_vector(checkpoint, "model.norm.weight")
        # The largest layer first: packing holds a layer twice, and nothing else is there yet.
        self._head = VocabularyHead(checkpoint, quantization, info.linears[-1], group, resident)

        def load(index: int) -> _Layer:
            return _Layer(checkpoint, quantization, info, part, index)

        self._layers = Layers(load, info.num_layers, resident)
        self.nbytes = self._embedding.nbytes + self._head.nbytes + self._layers.nbytes
        self.row_invariant = self._head.row_invariant and self._layers.row_invariant

    def forward(self, batch: ForwardBatch, pools: Mapping[str, torch.Tensor]) -> ForwardOutput:
        x = self._embedding(batch.token_ids)
        cosine, sine = self._rotary.tables(batch.positions)
        call = _Call(cosine, sine, places(batch), batch.slots, batch.segments[0].chunk, pools)
        taps = {}
        for i in range(len(self._layers)):
            x = self._layers[i](x, call)
            if i in batch.taps:
                taps[i] = x
        if self.info.num_layers in batch.taps:
            taps[self.info.num_layers] = normed(x, self._norm, self._eps)
        return ForwardOutput(self._head(normed(x[batch.logit_rows], self._norm, self._eps)), x, taps)


def eps_of(checkpoint: Checkpoint) -> float:
    return float(checkpoint.config.get("rms_norm_eps", 1e-6))


def normed(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return F.rms_norm(x, weight.shape, weight, eps)
