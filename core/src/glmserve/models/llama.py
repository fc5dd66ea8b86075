"""Family `llama`: Llama 2 and 3, SmolLM2, Mistral-shaped models (RMSNorm, rotary GQA, SwiGLU, tied or own head)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from glmserve.api import (
    Checkpoint,
    CheckpointError,
    ForwardBatch,
    ForwardOutput,
    LinearSpec,
    Model,
    ModelFamily,
    ModelInfo,
    PagedTensor,
    Parallel,
    Quantization,
)

from .activations import swiglu
from .attention import Place, attend, places, write
from .config import Keys
from .entries import PLAIN, check_kv_dtype
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
        _check_tensors(checkpoint, quantization, info)
        return LlamaModel(checkpoint, quantization, info)


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


class _Layer:
    def __init__(self, checkpoint: Checkpoint, quantization: Quantization, index: int, specs: list[LinearSpec]) -> None:
        at = f"model.layers.{index}"
        self.attention_norm = quantization.load_vector(checkpoint, f"{at}.input_layernorm.weight")
        self.mlp_norm = quantization.load_vector(checkpoint, f"{at}.post_attention_layernorm.weight")
        self.qkv, self.o, self.gate_up, self.down = (quantization.load_linear(checkpoint, spec) for spec in specs)
        self.linears = (self.qkv, self.o, self.gate_up, self.down)


class LlamaModel(Model):
    def __init__(self, checkpoint: Checkpoint, quantization: Quantization, info: ModelInfo) -> None:
        self.info = info
        config = checkpoint.config
        self._eps = float(config.get("rms_norm_eps", 1e-6))
        self._kv_heads, self._dim = info.paged[0].per_token
        frequencies, factor = inverse_frequencies(config, self._dim)
        if ROPE_DIVISORS in checkpoint.tensors:
            frequencies = frequencies / quantization.load_vector(checkpoint, ROPE_DIVISORS)
        self._rotary = Rotary(frequencies, factor)
        self._embedding = quantization.load_embedding(checkpoint, info.embedding)
        self._norm = quantization.load_vector(checkpoint, "model.norm.weight")
        self._layers = []
        # The largest layer first: packing holds a layer twice, and nothing else is there yet.
        self._head = quantization.load_linear(checkpoint, info.linears[-1])
        self.nbytes = self._embedding.nbytes + self._head.nbytes
        for i in range(info.num_layers):
            layer = _Layer(checkpoint, quantization, i, list(info.linears[4 * i : 4 * i + 4]))
            self._layers.append(layer)
            self.nbytes += sum(linear.nbytes for linear in layer.linears)
        self.row_invariant = self._head.row_invariant and all(
            linear.row_invariant for layer in self._layers for linear in layer.linears
        )

    def forward(self, batch: ForwardBatch, pools: Mapping[str, torch.Tensor]) -> ForwardOutput:
        x = self._embedding(batch.token_ids)
        cosine, sine = self._rotary.tables(batch.positions)
        where = places(batch)
        taps = {}
        for i, layer in enumerate(self._layers):
            x = x + layer.o(self._attention(layer, i, x, cosine, sine, batch, where, pools))
            x = x + layer.down(swiglu(layer.gate_up(self._normed(x, layer.mlp_norm)), batch.segments[0].chunk))
            if i in batch.taps:
                taps[i] = x
        if not len(batch.logit_rows):
            return ForwardOutput(x.new_empty(0, self.info.vocab_size), x, taps)
        return ForwardOutput(self._head(self._normed(x[batch.logit_rows], self._norm)), x, taps)

    def _attention(
        self,
        layer: _Layer,
        index: int,
        x: torch.Tensor,
        cosine: torch.Tensor,
        sine: torch.Tensor,
        batch: ForwardBatch,
        where: Sequence[Place],
        pools: Mapping[str, torch.Tensor],
    ) -> torch.Tensor:
        heads = layer.qkv(self._normed(x, layer.attention_norm)).view(len(x), -1, self._dim)
        rotated = rotate(heads[:, : -self._kv_heads], cosine, sine)
        keys, values = pools[f"layers.{index}.k"], pools[f"layers.{index}.v"]
        write(keys, batch.slots, rotated[:, -self._kv_heads :])
        write(values, batch.slots, heads[:, -self._kv_heads :])
        return attend(rotated[:, : -self._kv_heads], keys, values, where)

    def _normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, weight.shape, weight, self._eps)
