"""How much of a checkpoint is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import torch
from glmserve.api import Checkpoint, TensorInfo


class Counting(Checkpoint):
    """Another checkpoint, and the bytes that were asked of its tensors."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self.path, self.format, self.config = checkpoint.path, checkpoint.format, checkpoint.config
        self.tensors: Mapping[str, TensorInfo] = checkpoint.tensors
        self.fingerprint = checkpoint.fingerprint
        self.asked: Counter[str] = Counter()

    def read(self, name: str, rows: range | None = None, columns: range | None = None) -> torch.Tensor:
        found = self._checkpoint.read(name, rows, columns)
        self.asked[name] += found.nbytes
        return found

    def read_rows(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        found = self._checkpoint.read_rows(name, rows)
        self.asked[name] += found.nbytes
        return found
