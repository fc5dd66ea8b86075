"""The next-token-prediction layer of `glm_moe_dsa`, stored behind the last layer; drafter `mtp` runs it.

x = eh_proj [enorm(embedding of token p + 1) || hnorm(hidden of p)], then a decoder layer of its own at position p, with
its own indexer, latents and index keys, then shared_head.norm; the model's head reads token p + 2 off it. The hidden is
a normalised one in both places: after the model's final norm for the first draft, after shared_head.norm for those
that follow. The embedding half of position 0 is zero, as in the servers that the convention is known from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from glmserve.api import CheckpointError, ForwardBatch, Linear, NextTokenLayer, NextTokenOutput

from ..layers import Layers
from .call import new_call
from .layer import DecoderLayer
from .layout import at, nextn_input, paged_of
from .source import Source

if TYPE_CHECKING:
    from .model import GlmMoeDsaModel


class GlmNextTokenLayer(NextTokenLayer):
    def __init__(self, source: Source, model: GlmMoeDsaModel, resident: bool) -> None:
        """Raises CheckpointError when the checkpoint has no such layer."""
        config = source.config
        prefix = at(config.layers)
        if not any(name.startswith(f"{prefix}.") for name in source.checkpoint.tensors):
            raise CheckpointError(
                f"{source.checkpoint.path} holds no next-token layer (no tensor {prefix}.*), which drafter 'mtp' runs; "
                "choose another drafter."
            )
        self._model, self._eps = model, config.eps
        self._embedding_norm, self._hidden_norm, self._head_norm = (
            source.vector(f"{prefix}.{name}.weight") for name in ("enorm", "hnorm", "shared_head.norm")
        )

        def load_input(index: int) -> Linear:
            return source.linear(nextn_input(config))

        def load_layer(index: int) -> DecoderLayer:
            return DecoderLayer(source, config.layers, full=True, sparse=True)

        self._input, self._layer = Layers(load_input, 1, resident), Layers(load_layer, 1, resident)
        self.paged = paged_of(config, config.layers, full=True, kv_dtype=source.kv_dtype)
        self.nbytes = self._input.nbytes + self._layer.nbytes

    def forward(self, batch: ForwardBatch, hidden: torch.Tensor, pools: Mapping[str, torch.Tensor]) -> NextTokenOutput:
        embedded = self._model.embed(batch.token_ids).masked_fill((batch.positions == 0)[:, None], 0.0)
        halves = (self._normed(embedded, self._embedding_norm), self._normed(hidden, self._hidden_norm))
        x = self._input[0](torch.cat(halves, -1))
        x, _ = self._layer[0](x, new_call(batch, self._model.rotary, pools), None)
        hidden = self._normed(x, self._head_norm)
        return NextTokenOutput(hidden, self._model.head.everywhere(hidden[batch.logit_rows]))

    def _normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, weight.shape, weight, self._eps)
