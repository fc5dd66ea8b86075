"""Built-in quantization `gguf`: GGUF's block types, made float32 layer by layer at load."""

from __future__ import annotations

import torch

from glmserve.api import Checkpoint
from glmserve.store.block_types import BLOCK_SIZES
from glmserve.store.dequantize import dequantize

from .dense import FLOATS, Dense


class Gguf(Dense):
    """Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K and Q6_K beside plain floats."""

    name = "gguf"
    dtypes = FLOATS | frozenset(BLOCK_SIZES)

    @classmethod
    def detect(cls, checkpoint: Checkpoint) -> bool:
        return checkpoint.format == "gguf" and any(t.dtype in BLOCK_SIZES for t in checkpoint.tensors.values())

    def block_columns(self, dtype: str) -> int:
        return BLOCK_SIZES[dtype][0] if dtype in BLOCK_SIZES else 1

    def to_float(self, stored: torch.Tensor, dtype: str) -> torch.Tensor:
        return dequantize(stored, dtype) if dtype in BLOCK_SIZES else stored.to(torch.float32)
