"""A decoder layer: attention and MLP, each on the normalised input and added to it.

A rank computes some heads of the attention and some intermediate columns of every MLP; what the ranks have of the
output is summed once for the attention and once for the MLP, with which all of them are whole again.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from glmserve.api import Linear

from .call import Call
from .indexer import Selection
from .layout import at, dense_linears
from .mla import LatentAttention
from .moe import Mixture, SwigluMlp
from .source import Source


class DecoderLayer:
    def __init__(self, source: Source, index: int, full: bool, sparse: bool) -> None:
        self._eps = source.config.eps
        self._group = source.parallel.group
        self._attention_norm = source.vector(f"{at(index)}.input_layernorm.weight")
        self._mlp_norm = source.vector(f"{at(index)}.post_attention_layernorm.weight")
        self.attention = LatentAttention(source, index, full)
        self.mlp: Mixture | SwigluMlp
        if sparse:
            self.mlp = Mixture(source, index)
        else:
            self.mlp = SwigluMlp(source, dense_linears(source.config, index))
        self.linears: tuple[Linear, ...] = (*self.attention.linears, *self.mlp.linears)
        self.nbytes = self.attention.nbytes + sum(linear.nbytes for linear in self.mlp.linears)
        self.row_invariant = all(linear.row_invariant for linear in self.linears)

    def __call__(self, x: torch.Tensor, call: Call, selection: Selection | None) -> tuple[torch.Tensor, Selection]:
        """x: [rows, hidden]. Returns the layer's output and the selection for the layers that follow."""
        attended, selection = self.attention(self._normed(x, self._attention_norm), call, selection)
        x = x + self._group.sum("attention", attended)
        return x + self._group.sum("mlp", self.mlp(self._normed(x, self._mlp_norm), call.chunk)), selection

    def _normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, weight.shape, weight, self._eps)
