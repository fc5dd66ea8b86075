"""The forward pass of `glm_moe_dsa`."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F

from glmserve.api import (
    Checkpoint,
    ForwardBatch,
    ForwardOutput,
    Model,
    ModelInfo,
    NextTokenLayer,
    Quantization,
)

from ..rope import Rotary, inverse_frequencies
from .call import new_call
from .config import GlmConfig
from .indexer import Selection
from .layer import DecoderLayer
from .layout import FINAL_NORM
from .nextn import GlmNextTokenLayer


class GlmMoeDsaModel(Model):
    def __init__(self, checkpoint: Checkpoint, quantization: Quantization, config: GlmConfig, info: ModelInfo) -> None:
        self.info = info
        self._checkpoint, self._quantization = checkpoint, quantization
        self.config = config
        self.rotary = Rotary(*inverse_frequencies(checkpoint.config, config.rope_dim))
        self.embed = quantization.load_embedding(checkpoint, info.embedding)
        """Token ids, int64 [rows], to [rows, hidden]."""
        self._norm = quantization.load_vector(checkpoint, FINAL_NORM)
        # The largest layer first: packing holds a layer twice, and nothing else is there yet.
        self.head = quantization.load_linear(checkpoint, info.linears[-1])
        """[rows, hidden], after the final norm, to logits [rows, vocabulary]."""
        self.nbytes = self.embed.nbytes + self.head.nbytes
        self.layers: list[DecoderLayer] = []
        for i, (full, sparse) in enumerate(zip(config.full_indexer, config.sparse_mlp, strict=True)):
            layer = DecoderLayer(checkpoint, quantization, config, i, full, sparse, kv_dtype_of(info))
            self.layers.append(layer)
            self.nbytes += layer.nbytes
        self.row_invariant = self.head.row_invariant and all(
            linear.row_invariant for layer in self.layers for linear in layer.linears
        )

    def forward(self, batch: ForwardBatch, pools: Mapping[str, torch.Tensor]) -> ForwardOutput:
        x = self.embed(batch.token_ids)
        call = new_call(batch, self.rotary, pools)
        selection: Selection | None = None
        taps = {}
        for i, layer in enumerate(self.layers):
            x, selection = layer(x, call, selection)
            if i in batch.taps:
                taps[i] = x
        if self.info.num_layers in batch.taps:
            taps[self.info.num_layers] = self._normed(x)
        if not len(batch.logit_rows):
            return ForwardOutput(x.new_empty(0, self.info.vocab_size), x, taps)
        return ForwardOutput(self.head(self._normed(x[batch.logit_rows])), x, taps)

    def load_next_token_layer(self) -> NextTokenLayer:
        return GlmNextTokenLayer(self._checkpoint, self._quantization, self, kv_dtype_of(self.info))

    def _normed(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, self._norm.shape, self._norm, self.config.eps)


def kv_dtype_of(info: ModelInfo) -> str:
    """The type of the context that `describe` was asked for."""
    return info.paged[0].dtype.removesuffix("fn")
