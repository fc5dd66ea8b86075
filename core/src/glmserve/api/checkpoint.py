"""A checkpoint as every plugin sees it: a configuration, named tensors, and where they came from.

Names, shapes and row order are those of Hugging Face, whatever the file format: the GGUF reader translates its
names and undoes the row permutation that GGUF applies to the query and key projections.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class TensorInfo:
    """What a file's header says of one tensor."""

    name: str
    shape: tuple[int, ...]
    """Elements, outermost first: a linear weight is (out, in)."""
    dtype: str
    """Storage type in the format's own spelling: "F32", "F16", "BF16", "I16", "Q8_0", "Q4_1", "Q4_K" ..."""
    nbytes: int


class Checkpoint(ABC):
    """A model on disk, opened but not loaded: reading a tensor touches only that tensor's bytes."""

    format: str
    """"safetensors" or "gguf"."""
    path: Path
    config: Mapping[str, Any]
    """The model's `config.json`; for GGUF, its metadata under the same keys."""
    tensors: Mapping[str, TensorInfo]
    fingerprint: str
    """sha256 hex over all that changes an output: configuration, tensor headers, file digests or sizes and times."""

    @abstractmethod
    def read(self, name: str, rows: range | None = None, columns: range | None = None) -> torch.Tensor:
        """The tensor as stored, without a copy where the file allows it; of a 2-D one, some rows and columns.

        Float types come in their own dtype and `info.shape`; GGUF block types as uint8 [rows, bytes per row], and
        their `columns` cover whole blocks. Ranges have steps of 1. Only what is asked for is read from the file.
        Raises CheckpointError when there is no such tensor, IntegrityError when the file is shorter than it says.
        """

    @abstractmethod
    def read_rows(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        """Rows `rows` (int64 [n]) of a 2-D tensor, stored form, reading only those rows: an embedding look-up."""

    def require(self, name: str) -> TensorInfo:
        """The header of `name`. Raises CheckpointError that names the tensor and the checkpoint."""
        from .errors import CheckpointError

        try:
            return self.tensors[name]
        except KeyError:
            raise CheckpointError(f"{self.path} has no tensor {name!r}, which this model family needs.") from None

    def require_part(self, name: str, rows: range | None, columns: range | None) -> TensorInfo:
        """The header of `name`, for a reader of a part of it. Raises CheckpointError when the part is not there."""
        from .errors import CheckpointError

        info = self.require(name)
        if rows is None and columns is None:
            return info
        if len(info.shape) != 2:
            raise CheckpointError(f"{self.path}: tensor {name!r} has shape {info.shape}, and only 2-D ones have parts.")
        for part, size in zip((rows, columns), info.shape, strict=True):
            if part is not None and not (0 <= part.start <= part.stop <= size and part.step == 1):
                raise CheckpointError(f"{self.path}: tensor {name!r} of shape {info.shape} has no part {part}.")
        return info

    def require_rows(self, name: str, rows: torch.Tensor) -> TensorInfo:
        """The header of `name`, for a reader of `rows` (int64 [n]). Raises CheckpointError when they are not there."""
        from .errors import CheckpointError

        info = self.require(name)
        if len(info.shape) != 2:
            raise CheckpointError(f"{self.path}: tensor {name!r} has shape {info.shape}, and only 2-D ones have rows.")
        if rows.numel() and not 0 <= int(rows.min()) <= int(rows.max()) < info.shape[0]:
            raise CheckpointError(f"{self.path}: tensor {name!r} has {info.shape[0]} rows, and a row beyond was asked.")
        return info
