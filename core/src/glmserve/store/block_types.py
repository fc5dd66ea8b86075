"""The storage types of GGUF that are read: how many elements a block has, and how many bytes. Free of torch."""

from __future__ import annotations

BLOCK_SIZES: dict[str, tuple[int, int]] = {
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "Q8_0": (32, 34),
    "Q4_K": (256, 144),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
}
"""Block type -> (elements per block, bytes per block)."""

TYPE_SIZES: dict[str, tuple[int, int]] = {"F32": (1, 4), "F16": (1, 2), "BF16": (1, 2), **BLOCK_SIZES}
"""Every type of tensor that is read, floats as blocks of one element."""
