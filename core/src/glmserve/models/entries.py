"""What a token leaves in the pages, as float32 vectors to the model and in one of several types in memory.

Layouts per vector of `width` elements, in bytes: float32 4 * width; bfloat16 and float16 2 * width; float8_e4m3
width + 4 * ceil(width / 128): each group of 128 elements is divided by a float32 scale of its own, the group's largest
magnitude over 448, the largest e4m3 number. Codes and scales are paged tensors of their own, so that a page's image
holds both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from glmserve.api import CheckpointError, PagedTensor

from .attention import Place, span, write

GROUP = 128
E4M3_MAX = 448.0
FLOAT8 = "float8_e4m3"
PLAIN = ("float32", "bfloat16", "float16")
Pools = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Part:
    """Some consecutive elements of an entry, stored in one way."""

    name: str
    width: int
    kv_dtype: str

    @property
    def paged(self) -> tuple[PagedTensor, ...]:
        if self.kv_dtype != FLOAT8:
            return (PagedTensor(self.name, (self.width,), self.kv_dtype),)
        scales = PagedTensor(f"{self.name}_scale", (-(-self.width // GROUP),), "float32")
        return PagedTensor(self.name, (self.width,), "float8_e4m3fn"), scales

    def write(self, pools: Pools, slots: torch.Tensor, values: torch.Tensor) -> None:
        if self.kv_dtype != FLOAT8:
            write(pools[self.name], slots, values)
            return
        codes, scales = to_float8(values)
        # Torch copies no float8 by index; bytes it does.
        write(pools[self.name].view(torch.uint8), slots, codes.view(torch.uint8))
        write(pools[f"{self.name}_scale"], slots, scales)

    def span(self, pools: Pools, place: Place, first: int, count: int) -> torch.Tensor:
        stored = span(pools[self.name], place, first, count)
        if self.kv_dtype != FLOAT8:
            return stored.to(torch.float32)
        return from_float8(stored, span(pools[f"{self.name}_scale"], place, first, count))

    def at(self, pools: Pools, slots: torch.Tensor) -> torch.Tensor:
        stored = pools[self.name].flatten(0, 1)[slots]
        if self.kv_dtype != FLOAT8:
            return stored.to(torch.float32)
        return from_float8(stored, pools[f"{self.name}_scale"].flatten(0, 1)[slots])


@dataclass(frozen=True)
class Entry:
    """A float32 vector per token, in parts."""

    parts: tuple[Part, ...]

    @property
    def paged(self) -> tuple[PagedTensor, ...]:
        return tuple(tensor for part in self.parts for tensor in part.paged)

    def write(self, pools: Pools, slots: torch.Tensor, values: torch.Tensor) -> None:
        """values: [rows, width], written at int64 slots [rows]."""
        if not len(slots):
            return
        for part, piece in zip(self.parts, torch.split(values, [part.width for part in self.parts], -1), strict=True):
            part.write(pools, slots, piece)

    def span(self, pools: Pools, place: Place, first: int, count: int) -> torch.Tensor:
        """float32 [count, width] of the entries first, first + 1, ...; a view of the pool where that is possible."""
        return _joined([part.span(pools, place, first, count) for part in self.parts])

    def at(self, pools: Pools, slots: torch.Tensor) -> torch.Tensor:
        """float32 [*slots.shape, width], a copy."""
        return _joined([part.at(pools, slots) for part in self.parts])


def _joined(pieces: list[torch.Tensor]) -> torch.Tensor:
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, -1)


def check_kv_dtype(kv_dtype: str, allowed: tuple[str, ...], family: str) -> None:
    """Raises CheckpointError when a family does not store its context in that type."""
    if kv_dtype not in allowed:
        raise CheckpointError(
            f"engine.kv_dtype is {kv_dtype!r}, in which family {family!r} does not store its context; choose one of "
            f"{', '.join(allowed)}."
        )


def to_float8(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(float8_e4m3fn [rows, width], float32 scales [rows, groups]) of float32 [rows, width]."""
    width = values.shape[-1]
    groups = F.pad(values, (0, -width % GROUP)).view(len(values), -1, GROUP)
    scales = groups.abs().amax(-1) / E4M3_MAX
    scales = torch.where(scales == 0, 1.0, scales)
    codes = (groups / scales[..., None]).to(torch.float8_e4m3fn)
    return codes.flatten(-2)[..., :width].contiguous(), scales


def from_float8(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The inverse, up to rounding: float32 [..., width]."""
    width = codes.shape[-1]
    values, scales = _scaled_down(codes), scales * 256
    group = min(GROUP, width)
    if width % group:
        return values * scales.repeat_interleave(group, -1)[..., :width]
    # Without a copy of the scales: the indexer comes here with every key of the context.
    return (values.reshape(*scales.shape, group) * scales[..., None]).flatten(-2)


def _scaled_down(codes: torch.Tensor) -> torch.Tensor:
    """float32: the e4m3 numbers over 256, exactly; several times as fast as torch's own conversion.

    An e4m3 number has the sign, the exponent and the mantissa of a float16 in fewer bits, and biases of 7 and 15 make
    the 256. Its two codes for not a number become 480: where values were not finite, their scale is not either.
    """
    bits = codes.view(torch.int8).to(torch.int16)
    return ((bits & 0x7F) << 7 | (bits & -0x8000)).view(torch.float16).to(torch.float32)
