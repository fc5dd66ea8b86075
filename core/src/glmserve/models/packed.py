"""A float32 linear layer whose rows do not influence each other.

oneDNN's prepacked product gives a row the same bits in a call of 2 rows or of 500, at any place in it, on the CPUs seen
so far (AVX2, AVX-512); a call of one row takes another kernel for some shapes, so a lonely row is padded to two.
That is an observation, not a promise of the library: every shape is *probed* once per process before it is trusted,
and a shape that fails is computed in fixed tiles of 8 rows instead, which is slower and independent by construction.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F

from glmserve.api import Linear

TILE = 8
PROBE_COUNTS = (2, 3, 5, 8, 9, 16, 17, 33, 64)
Product = Callable[[torch.Tensor], torch.Tensor]


def rows_are_independent(product: Product, in_features: int) -> bool:
    """Whether `product` gives random rows the same bits in calls of any of PROBE_COUNTS rows, wherever they stand."""
    rows = torch.randn(128, in_features, generator=torch.Generator().manual_seed(0))
    reference = product(rows)
    return all(
        torch.equal(product(rows[start : start + count].contiguous()), reference[start : start + count])
        for count in PROBE_COUNTS
        for start in (0, 1, 7, 128 - count)
        if start + count <= 128
    )


@functools.cache
def _shape_is_independent(out_features: int, in_features: int, threads: int) -> bool:
    """The probe's verdict on a shape: the kernel is chosen by shape and threads, never by the weights' values."""
    weight = torch.randn(out_features, in_features, generator=torch.Generator().manual_seed(1))
    return rows_are_independent(_prepacked(weight), in_features)


def _prepacked(weight: torch.Tensor) -> Product:
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, TILE)

    def product(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
        return result

    return product


def in_tiles(product: Product, x: torch.Tensor) -> torch.Tensor:
    """`product` in calls of exactly TILE rows, the last one padded with zeros."""
    padded = F.pad(x, (0, 0, 0, -len(x) % TILE))
    return torch.cat([product(tile) for tile in torch.split(padded, TILE)])[: len(x)]


class PackedLinear(Linear):
    """y = x @ weight.T + bias. Holds the packed weight only; the source may go after construction."""

    row_invariant = True

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """weight: float32 [out, in]; bias: float32 [out] or None."""
        self.out_features, self.in_features = weight.shape
        self.nbytes = weight.nbytes + (0 if bias is None else bias.nbytes)
        self._bias = bias
        self._tiled = True
        self._product: Product
        if torch._C._has_mkldnn:
            self._product = _prepacked(weight)
            self._tiled = not _shape_is_independent(self.out_features, self.in_features, torch.get_num_threads())
        else:
            own = weight.clone()
            self._product = lambda x: F.linear(x, own)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._tiled:
            y = in_tiles(self._product, x)
        elif len(x) == 1:
            y = self._product(x.expand(2, -1).contiguous())[:1]
        else:
            y = self._product(x.contiguous())
        return y if self._bias is None else y + self._bias
