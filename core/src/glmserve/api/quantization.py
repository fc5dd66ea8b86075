"""Seam 1: how weights are stored and multiplied.

A provider turns the stored tensors of a linear layer into a `Linear` that computes. The model never learns which.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    import torch

    from .checkpoint import Checkpoint


@dataclass(frozen=True)
class LinearSpec:
    """One linear layer of the model, possibly several stored layers side by side on the output axis.

    `parts` are the stored names without ".weight"; a fused query-key-value layer has three. A provider that cannot
    fuse returns a Linear that concatenates.
    """

    name: str
    parts: tuple[str, ...]
    part_features: tuple[int, ...]
    """Output features of each part."""
    in_features: int

    @property
    def out_features(self) -> int:
        return sum(self.part_features)


@dataclass(frozen=True)
class Shard:
    """The part of a linear layer that one rank computes: some output rows of each of its parts, some input columns."""

    rows: tuple[range, ...]
    """Of each part; steps of 1, possibly empty."""
    columns: range
    """Steps of 1, not empty."""

    @staticmethod
    def whole(spec: LinearSpec) -> Shard:
        return Shard(tuple(map(range, spec.part_features)), range(spec.in_features))

    @property
    def out_features(self) -> int:
        return sum(map(len, self.rows))


class Linear(ABC):
    """y[rows, out] = x[rows, in] @ W.T (+ bias), in float32 on CPU."""

    in_features: int
    out_features: int
    row_invariant: bool
    """True when an output row depends on its input row and the weights alone, bit for bit: not on how many rows
    the call has, nor on the row's place among them. Only then may the engine promise the same tokens in any batch."""
    nbytes: int
    """Bytes this layer holds in memory."""

    @abstractmethod
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: [rows, in], rows >= 1. Returns [rows, out]. Does not modify x."""


class Embedding(ABC):
    """Token embedding look-up."""

    nbytes: int

    @abstractmethod
    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        """token_ids: int64 [rows], each in [0, vocabulary). Returns float32 [rows, hidden]."""


class Quantization(ABC):
    """A provider of the quantization seam."""

    name: ClassVar[str]
    capabilities: ClassVar[frozenset[str]] = frozenset()
    requires: ClassVar[frozenset[str]] = frozenset()
    conflicts: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    @abstractmethod
    def detect(cls, checkpoint: Checkpoint) -> bool:
        """True when this provider reads this checkpoint. Looks at headers only."""

    @abstractmethod
    def memory_bytes(self, checkpoint: Checkpoint, spec: LinearSpec) -> int:
        """Bytes that `load_linear` will hold of the whole layer, from headers alone."""

    def stored_tensors(self, checkpoint: Checkpoint, spec: LinearSpec) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor that must store the layer, but for its biases, from headers alone."""
        parts = zip(spec.parts, spec.part_features, strict=True)
        return {f"{part}.weight": (features, spec.in_features) for part, features in parts}

    @abstractmethod
    def load_linear(self, checkpoint: Checkpoint, spec: LinearSpec, shard: Shard | None = None) -> Linear:
        """Build the layer, or the part of it that `shard` says, reading no more than that.

        Of a layer cut by its columns the results are partial and are summed over the ranks, so the bias belongs to the
        part with column 0. Raises CheckpointError naming the tensor when its type or shape does not fit.
        """

    @abstractmethod
    def load_embedding(self, checkpoint: Checkpoint, name: str) -> Embedding:
        """Look-up table over the stored tensor `name` ([vocabulary, hidden], with its ".weight")."""

    @abstractmethod
    def load_vector(self, checkpoint: Checkpoint, name: str) -> torch.Tensor:
        """A small unquantized tensor (a norm weight, a bias) as float32, its own copy."""
