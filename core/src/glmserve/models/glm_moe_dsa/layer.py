"""A decoder layer: attention and MLP, each on the normalised input and added to it."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from glmserve.api import Checkpoint, Linear, Quantization

from .call import Call
from .config import GlmConfig
from .indexer import Selection
from .layout import at, dense_linears
from .mla import LatentAttention
from .moe import Mixture, SwigluMlp


class DecoderLayer:
    def __init__(
        self,
        checkpoint: Checkpoint,
        quantization: Quantization,
        config: GlmConfig,
        index: int,
        full: bool,
        sparse: bool,
        kv_dtype: str,
    ) -> None:
        self._eps = config.eps
        self._attention_norm = quantization.load_vector(checkpoint, f"{at(index)}.input_layernorm.weight")
        self._mlp_norm = quantization.load_vector(checkpoint, f"{at(index)}.post_attention_layernorm.weight")
        self.attention = LatentAttention(checkpoint, quantization, config, index, full, kv_dtype)
        self.mlp: Mixture | SwigluMlp
        if sparse:
            self.mlp = Mixture(checkpoint, quantization, config, index)
        else:
            self.mlp = SwigluMlp(checkpoint, quantization, dense_linears(config, index))
        self.linears: tuple[Linear, ...] = (*self.attention.linears, *self.mlp.linears)
        self.nbytes = self.attention.nbytes + sum(linear.nbytes for linear in self.mlp.linears)

    def __call__(self, x: torch.Tensor, call: Call, selection: Selection | None) -> tuple[torch.Tensor, Selection]:
        """x: [rows, hidden]. Returns the layer's output and the selection for the layers that follow."""
        attended, selection = self.attention(self._normed(x, self._attention_norm), call, selection)
        x = x + attended
        return x + self.mlp(self._normed(x, self._mlp_norm), call.chunk), selection

    def _normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, weight.shape, weight, self._eps)
