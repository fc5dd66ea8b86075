"""Built-in quantization `block_fp8`: e4m3 weights with one float32 scale per block, made float32 at load.

The layout of DeepSeek-V3's and GLM-5's FP8 checkpoints: beside `X.weight` (float8 e4m3, [out, in]) lies
`X.weight_scale_inv` (float32, [ceil(out / b), ceil(in / b)]), by which the blocks of b * b elements, b = 128 there, are
multiplied. Which layers are stored so is seen by their type, tensor by tensor: the configuration's list of exceptions
names tensors that do not exist.
"""

from __future__ import annotations

import torch

from glmserve.api import Checkpoint, CheckpointError, LinearSpec

from .dense import FLOATS, Dense

E4M3 = "F8_E4M3"
SCALE = "_scale_inv"


class BlockFp8(Dense):
    """Layers in block-scaled float8, beside plain floats."""

    name = "block_fp8"
    dtypes = FLOATS | {E4M3}

    @classmethod
    def detect(cls, checkpoint: Checkpoint) -> bool:
        return any(info.dtype == E4M3 for info in checkpoint.tensors.values())

    def stored_tensors(self, checkpoint: Checkpoint, spec: LinearSpec) -> dict[str, tuple[int, ...]]:
        shapes = super().stored_tensors(checkpoint, spec)
        for name, (rows, columns) in list(shapes.items()):
            if name in checkpoint.tensors and checkpoint.tensors[name].dtype == E4M3:
                block = block_size(checkpoint)
                shapes[name + SCALE] = (-(-rows // block[0]), -(-columns // block[1]))
        return shapes

    def _matrix(
        self, checkpoint: Checkpoint, name: str, shape: tuple[int, int], rows: range, columns: range
    ) -> torch.Tensor:
        stored = super()._matrix(checkpoint, name, shape, rows, columns)
        if checkpoint.tensors[name].dtype != E4M3:
            return stored
        info = checkpoint.require(name + SCALE)
        block = block_size(checkpoint)
        expected = tuple(-(-size // b) for size, b in zip(shape, block, strict=True))
        if info.dtype != "F32" or info.shape != expected:
            raise CheckpointError(
                f"{checkpoint.path}: tensor {info.name!r} is {info.dtype} of shape {list(info.shape)}; the scales of "
                f"{name!r} in blocks of {list(block)} are F32 of shape {list(expected)}."
            )
        # Of these small tensors all is read: the part would be a few bytes here and there.
        scales = checkpoint.read(info.name)
        down, across = (torch.arange(p.start, p.stop) // b for p, b in zip((rows, columns), block, strict=True))
        return stored * scales[down[:, None], across]


def block_size(checkpoint: Checkpoint) -> tuple[int, int]:
    """Rows and columns of a block. Raises CheckpointError when the configuration does not say it."""
    settings = checkpoint.config.get("quantization_config")
    size = settings.get("weight_block_size") if isinstance(settings, dict) else None
    if not (isinstance(size, list) and len(size) == 2 and all(type(n) is int and n > 0 for n in size)):
        raise CheckpointError(
            f"{checkpoint.path} stores weights as {E4M3}, but its configuration has no quantization_config with two "
            "positive integers in weight_block_size, so their scales cannot be placed."
        )
    return size[0], size[1]
