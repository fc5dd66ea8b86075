"""The forward pass of `glm_moe_dsa`."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F

from glmserve.api import ForwardBatch, ForwardOutput, Model, ModelInfo, NextTokenLayer

from ..head import VocabularyHead
from ..layers import Layers
from ..rope import Rotary, inverse_frequencies
from .call import new_call
from .indexer import Selection
from .layer import DecoderLayer
from .layout import FINAL_NORM
from .nextn import GlmNextTokenLayer
from .source import Source


class GlmMoeDsaModel(Model):
    def __init__(self, source: Source, info: ModelInfo, resident: bool) -> None:
        self.info = info
        self._source, self._resident = source, resident
        self.config = config = source.config
        self.rotary = Rotary(*inverse_frequencies(source.checkpoint.config, config.rope_dim))
        self.embed = source.quantization.load_embedding(source.checkpoint, info.embedding)
        """Token ids, int64 [rows], to [rows, hidden]."""
        self._norm = source.vector(FINAL_NORM)
        # The largest layer first: packing holds a layer twice, and nothing else is there yet.
        self.head = VocabularyHead(
            source.checkpoint, source.quantization, info.linears[-1], source.parallel.group, resident
        )
        """[rows, hidden], after the final norm, to logits [rows, vocabulary]."""

        def load(index: int) -> DecoderLayer:
            return DecoderLayer(source, index, config.full_indexer[index], config.sparse_mlp[index])

        self.layers = Layers(load, config.layers, resident)
        self.nbytes = self.embed.nbytes + self.head.nbytes + self.layers.nbytes
        self.row_invariant = self.head.row_invariant and self.layers.row_invariant

    def forward(self, batch: ForwardBatch, pools: Mapping[str, torch.Tensor]) -> ForwardOutput:
        x = self.embed(batch.token_ids)
        call = new_call(batch, self.rotary, pools)
        selection: Selection | None = None
        taps = {}
        for i in range(self.info.num_layers):
            x, selection = self.layers[i](x, call, selection)
            if i in batch.taps:
                taps[i] = x
        if self.info.num_layers in batch.taps:
            taps[self.info.num_layers] = self._normed(x)
        return ForwardOutput(self.head(self._normed(x[batch.logit_rows])), x, taps)

    def load_next_token_layer(self) -> NextTokenLayer:
        return GlmNextTokenLayer(self._source, self, self._resident)

    def _normed(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, self._norm.shape, self._norm, self.config.eps)


def kv_dtype_of(info: ModelInfo) -> str:
    """The type of the context that `describe` was asked for."""
    return info.paged[0].dtype.removesuffix("fn")
