"""Built-in quantization `dense`: float checkpoints, computed in float32 on the CPU."""

from __future__ import annotations

import torch

from glmserve.api import Checkpoint, CheckpointError, Embedding, Linear, LinearSpec, Quantization, Shard

from .packed import PackedLinear

FLOATS = frozenset({"F32", "F16", "BF16"})


class RowLookup(Embedding):
    """Reads the asked rows from the checkpoint at each call: the table is never held twice."""

    nbytes = 0

    def __init__(self, provider: Dense, checkpoint: Checkpoint, name: str) -> None:
        self._provider = provider
        self._checkpoint = checkpoint
        self._dtype = checkpoint.require(name).dtype
        self._name = name

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        return self._provider.to_float(self._checkpoint.read_rows(self._name, token_ids), self._dtype)


class Dense(Quantization):
    """F32, F16 and BF16 weights. 16-bit ones become float32 at load: CPU products of 16-bit types are far slower."""

    name = "dense"
    dtypes = FLOATS

    @classmethod
    def detect(cls, checkpoint: Checkpoint) -> bool:
        return all(info.dtype in cls.dtypes for info in checkpoint.tensors.values())

    def to_float(self, stored: torch.Tensor, dtype: str) -> torch.Tensor:
        """Stored form to float32 [rows, columns]."""
        return stored.to(torch.float32)

    def memory_bytes(self, checkpoint: Checkpoint, spec: LinearSpec) -> int:
        return 4 * spec.in_features * spec.out_features

    def load_linear(self, checkpoint: Checkpoint, spec: LinearSpec, shard: Shard | None = None) -> Linear:
        shard = shard or Shard.whole(spec)
        weights = []
        for part, features, rows in zip(spec.parts, spec.part_features, shard.rows, strict=True):
            shape = (features, spec.in_features)
            weights.append(self._matrix(checkpoint, f"{part}.weight", shape, rows, shard.columns))
        biases = [f"{part}.bias" for part in spec.parts]
        bias = None
        if shard.columns.start == 0 and any(name in checkpoint.tensors for name in biases):
            vectors = [self.load_vector(checkpoint, name) for name in biases]
            bias = torch.cat([v[rows.start : rows.stop] for v, rows in zip(vectors, shard.rows, strict=True)])
        return PackedLinear(weights[0] if len(weights) == 1 else torch.cat(weights), bias)

    def load_embedding(self, checkpoint: Checkpoint, name: str) -> Embedding:
        self._check_dtype(checkpoint, name)
        return RowLookup(self, checkpoint, name)

    def load_vector(self, checkpoint: Checkpoint, name: str) -> torch.Tensor:
        info = checkpoint.require(name)
        if info.dtype not in FLOATS or len(info.shape) != 1:
            raise CheckpointError(
                f"{checkpoint.path}: tensor {name!r} is {info.dtype} of shape {list(info.shape)}, not a float vector."
            )
        return checkpoint.read(name).to(torch.float32).clone()

    def block_columns(self, dtype: str) -> int:
        """Columns that are stored as one."""
        return 1

    def _matrix(
        self, checkpoint: Checkpoint, name: str, shape: tuple[int, int], rows: range, columns: range
    ) -> torch.Tensor:
        """float32 [rows, columns] of the stored tensor, which is of `shape`."""
        info = checkpoint.require(name)
        self._check_dtype(checkpoint, name)
        if info.shape != shape:
            raise CheckpointError(
                f"{checkpoint.path}: tensor {name!r} has shape {list(info.shape)}, but the configuration "
                f"needs {list(shape)}."
            )
        if (len(rows), len(columns)) == shape:
            return self.to_float(checkpoint.read(name), info.dtype)
        block = self.block_columns(info.dtype)
        first = columns.start // block * block
        covering = range(first, -(-columns.stop // block) * block)
        stored = self.to_float(checkpoint.read(name, rows, covering), info.dtype)
        return stored[:, columns.start - first : columns.stop - first].contiguous()

    def _check_dtype(self, checkpoint: Checkpoint, name: str) -> None:
        dtype = checkpoint.require(name).dtype
        if dtype not in self.dtypes:
            raise CheckpointError(
                f"{checkpoint.path}: tensor {name!r} is stored as {dtype}, which quantization {self.name!r} "
                f"does not read; it reads {', '.join(sorted(self.dtypes))}."
            )
