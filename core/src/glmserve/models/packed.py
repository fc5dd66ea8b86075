"""A float32 linear layer whose rows do not influence each other.

oneDNN's prepacked product gives a row the same bits in a call of 2 rows or of 500, at any place in it, on the CPUs seen
so far (AVX2, AVX-512); a call of one row takes another kernel for some shapes, so a lonely row is padded to two.
That is an observation, not a promise of the library: every shape is *probed* once per process before it is trusted.
A shape that fails is computed in fixed tiles of 8 rows, if these pass a probe of their own, else row by row, which is
slow and independent by construction.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

import torch
import torch.nn.functional as F

from glmserve.api import Linear

TILE = 8
PROBE_ROWS = 128
PROBE_COUNTS = (2, 3, 5, 8, 9, 16, 17, 33, 64)
Product = Callable[[torch.Tensor], torch.Tensor]


class Mode(Enum):
    """How a product must be called for its rows to be independent."""

    ANY = "any number of rows from two"
    TILES = "tiles of 8 rows"
    ROWS = "row by row"


def called_rows(rows: int) -> int:
    """How many rows a product of `rows` is called with: zeros fill it up.

    oneDNN keeps code of half a megabyte for every shape it meets, up to 1,024 of them, and takes half a millisecond to
    make it. So of all numbers of rows that prompts and experts come to, it gets to see some.
    """
    step = 1 if rows <= 8 else 4 if rows <= 32 else 16 if rows <= 64 else 32
    return max(2, -(-rows // step) * step)


def in_any(product: Product, x: torch.Tensor) -> torch.Tensor:
    """`product` in one call, of two rows at least."""
    missing = called_rows(len(x)) - len(x)
    return product(F.pad(x, (0, 0, 0, missing)))[: len(x)] if missing else product(x.contiguous())


def in_tiles(product: Product, x: torch.Tensor) -> torch.Tensor:
    """`product` in calls of exactly TILE rows, the last one padded with zeros."""
    padded = F.pad(x, (0, 0, 0, -len(x) % TILE))
    return torch.cat([product(tile) for tile in torch.split(padded, TILE)])[: len(x)]


def in_rows(product: Product, x: torch.Tensor) -> torch.Tensor:
    """`product` in calls of one row, each a copy: a kernel may also look at how its operand is aligned."""
    return torch.cat([product(row.clone()) for row in torch.split(x, 1)])


CALLS = {Mode.ANY: in_any, Mode.TILES: in_tiles, Mode.ROWS: in_rows}


def trusted_mode(product: Product, in_features: int) -> Mode:
    """The fastest mode in which random rows get the same bits in any company and at any place in it."""
    rows = torch.randn(PROBE_ROWS, in_features, generator=torch.Generator().manual_seed(0))
    return next((mode for mode in (Mode.ANY, Mode.TILES) if _rows_are_independent(product, mode, rows)), Mode.ROWS)


def _rows_are_independent(product: Product, mode: Mode, rows: torch.Tensor) -> bool:
    call = CALLS[mode]
    reference = call(product, rows)
    spans = {(start, count) for count in (1, *PROBE_COUNTS) for start in (0, 1, 7, PROBE_ROWS - count)}
    spans |= {(start, TILE) for start in range(TILE)}  # every row at every place of a tile
    return all(torch.equal(call(product, rows[s : s + n]), reference[s : s + n]) for s, n in sorted(spans))


_modes: dict[tuple[int, int, int], Mode] = {}
"""(out, in, threads) -> the probe's verdict: a kernel is chosen by these, never by the weights' values."""


def _prepacked(weight: torch.Tensor) -> Product:
    """x -> x @ weight.T over a copy of `weight` in the library's own layout."""
    if not torch._C._has_mkldnn or not len(weight):  # the library has no product without results
        own = weight.clone()
        return lambda x: F.linear(x, own)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, TILE)

    def product(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
        return result

    return product


class PackedLinear(Linear):
    """y = x @ weight.T + bias. Holds the packed weight only; the source may go after construction."""

    row_invariant = True

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """weight: float32 [out, in]; bias: float32 [out] or None. The first of a shape in the process is probed."""
        self.out_features, self.in_features = weight.shape
        self.nbytes = weight.nbytes + (0 if bias is None else bias.nbytes)
        self._bias = bias
        self._product = _prepacked(weight)
        key = (self.out_features, self.in_features, torch.get_num_threads())
        if key not in _modes:
            _modes[key] = trusted_mode(self._product, self.in_features)
        self.mode = _modes[key]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y = CALLS[self.mode](self._product, x)
        return y if self._bias is None else y + self._bias
