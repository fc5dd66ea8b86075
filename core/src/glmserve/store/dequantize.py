"""GGUF blocks to float32, in torch, with the operations of the reference in its order: the results are bit-equal."""

from __future__ import annotations

from collections.abc import Callable

import torch

from glmserve.api import CheckpointError

from .block_types import BLOCK_SIZES

_CHUNK_ELEMENTS = 1 << 18
"""Elements in flight: small enough that the intermediate tensors stay in the processor's cache."""


def block_elements(dtype: str) -> int:
    """Elements of one block of `dtype`. Raises CheckpointError for a type that is not a supported block type."""
    return _sizes(dtype)[0]


def block_bytes(dtype: str) -> int:
    """Bytes of one block of `dtype`. Raises CheckpointError for a type that is not a supported block type."""
    return _sizes(dtype)[1]


def dequantize(blocks: torch.Tensor, dtype: str) -> torch.Tensor:
    """uint8 [rows, bytes per row] of block type `dtype` to float32 [rows, columns].

    Raises CheckpointError for an unsupported type or rows that are no whole number of blocks.
    """
    elements, size = _sizes(dtype)
    if blocks.dtype != torch.uint8 or blocks.dim() != 2 or blocks.shape[1] % size:
        raise CheckpointError(
            f"{dtype} blocks must be uint8 [rows, n * {size}], not {blocks.dtype} {tuple(blocks.shape)}."
        )
    rows, per_row = blocks.shape[0], blocks.shape[1] // size
    out = torch.empty((rows, per_row * elements), dtype=torch.float32)
    step = max(1, _CHUNK_ELEMENTS // max(1, per_row * elements))
    unpack = _UNPACK[dtype]
    for start in range(0, rows, step):
        part = blocks[start : start + step]
        out[start : start + step].view(part.shape[0] * per_row, elements).copy_(
            unpack(part.reshape(part.shape[0] * per_row, size))
        )
    return out


def _sizes(dtype: str) -> tuple[int, int]:
    try:
        return BLOCK_SIZES[dtype]
    except KeyError:
        raise CheckpointError(
            f"{dtype} is not a supported block type; the supported ones are {', '.join(BLOCK_SIZES)}."
        ) from None


def _half(b: torch.Tensor, at: int) -> torch.Tensor:
    """The float16 at byte `at` of every block, as float32 [blocks, 1]."""
    return b[:, at : at + 2].contiguous().view(torch.float16).float()


def _nibbles(qs: torch.Tensor) -> torch.Tensor:
    """uint8 [..., n] to [..., 2 n]: all low nibbles, then all high ones."""
    return torch.cat([qs & 15, qs >> 4], dim=-1)


def _fifth_bits(qh: torch.Tensor) -> torch.Tensor:
    """uint8 [blocks, 4] to [blocks, 32]: bit i of the little-endian word as 0 or 16."""
    shifts = torch.arange(8, dtype=torch.uint8)
    return (((qh.unsqueeze(-1) >> shifts) & 1) << 4).flatten(1)


def _q8_0(b: torch.Tensor) -> torch.Tensor:
    return b[:, 2:].view(torch.int8).float() * _half(b, 0)


def _q4_0(b: torch.Tensor) -> torch.Tensor:
    return _nibbles(b[:, 2:]).float().sub_(8).mul_(_half(b, 0))


def _q4_1(b: torch.Tensor) -> torch.Tensor:
    return _nibbles(b[:, 4:]).float().mul_(_half(b, 0)).add_(_half(b, 2))


def _q5_0(b: torch.Tensor) -> torch.Tensor:
    return (_nibbles(b[:, 6:]) | _fifth_bits(b[:, 2:6])).float().sub_(16).mul_(_half(b, 0))


def _q5_1(b: torch.Tensor) -> torch.Tensor:
    return (_nibbles(b[:, 8:]) | _fifth_bits(b[:, 4:8])).float().mul_(_half(b, 0)).add_(_half(b, 2))


def _k_scales(b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales and minima of the eight groups of 32 of a Q4_K or Q5_K block, float32 [blocks, 8, 1] each."""
    low, mid, high = b[:, 4:8], b[:, 8:12], b[:, 12:16]
    scale = torch.cat([low & 63, (high & 15) | ((low >> 2) & 48)], dim=1).float()
    minimum = torch.cat([mid & 63, (high >> 4) | ((mid >> 2) & 48)], dim=1).float()
    return scale.mul_(_half(b, 0)).unsqueeze(-1), minimum.mul_(_half(b, 2)).unsqueeze(-1)


def _q4_k(b: torch.Tensor) -> torch.Tensor:
    scale, minimum = _k_scales(b)
    q = _nibbles(b[:, 16:].view(-1, 4, 32)).view(-1, 8, 32)
    return q.float().mul_(scale).sub_(minimum).flatten(1)


def _q5_k(b: torch.Tensor) -> torch.Tensor:
    scale, minimum = _k_scales(b)
    low = _nibbles(b[:, 48:].view(-1, 4, 32)).view(-1, 8, 32)
    shifts = torch.arange(8, dtype=torch.uint8).view(8, 1)
    high = ((b[:, 16:48].unsqueeze(1) >> shifts) & 1) << 4
    return (low | high).float().mul_(scale).sub_(minimum).flatten(1)


def _q6_k(b: torch.Tensor) -> torch.Tensor:
    low = _nibbles(b[:, :128].view(-1, 2, 64)).view(-1, 8, 32)
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8).view(4, 1)
    high = ((b[:, 128:192].view(-1, 2, 1, 32) >> shifts) & 3).view(-1, 8, 32) << 4
    scale = b[:, 192:208].view(torch.int8).float().mul_(_half(b, 208)).unsqueeze(-1)
    return (low | high).float().sub_(32).view(-1, 16, 16).mul_(scale).flatten(1)


_UNPACK: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
