"""Collectives: how the ranks that compute one model add up and share their tensors.

All ranks of a group make the same calls in the same order, with tensors whose shapes every one of them knows. A sum is
taken in the order of the ranks, element by element: it has the same bits on all ranks, and those of a row do not depend
on the rows beside it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class Group(ABC):
    """Some ranks, seen from one of them. Used by one thread. Tensors lie in the CPU's memory."""

    rank: int
    size: int
    exchanges: int = 0
    """Made so far; the same on every rank after the same calls."""

    @abstractmethod
    def exchange(self, name: str, outgoing: Mapping[int, torch.Tensor], incoming: Mapping[int, torch.Tensor]) -> None:
        """Send each rank its tensor of `outgoing`, and fill those of `incoming` with what their ranks sent.

        Both are contiguous and name other ranks only; a rank that names no other takes no part. `name` says for errors
        and counters what the exchange is for. Raises RankError naming the ranks that did not answer within the deadline
        or are gone, or that make another exchange.
        """

    def sum(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """x of rank 0 + x of rank 1 + ..., on every rank; float32 of one shape on all."""
        if self.size == 1:
            return x
        parts = self.gather(name, x, [x.shape] * self.size, range(self.size))
        total = parts[0] + parts[1]
        for part in parts[2:]:
            total += part
        return total

    def gather(
        self, name: str, x: torch.Tensor, shapes: Sequence[Sequence[int]], ranks: Sequence[int]
    ) -> list[torch.Tensor]:
        """x of each of `ranks`, of which this is one, in their order; shapes[i] is that of ranks[i]'s."""
        x = x.contiguous()
        parts = [x if rank == self.rank else x.new_empty(*shape) for rank, shape in zip(ranks, shapes, strict=True)]
        others = {rank: part for rank, part in zip(ranks, parts, strict=True) if rank != self.rank}
        self.exchange(name, dict.fromkeys(others, x), others)
        return parts


class _Alone(Group):
    """A group of one: there is nobody to exchange anything with."""

    rank = 0
    size = 1

    def exchange(self, name: str, outgoing: Mapping[int, torch.Tensor], incoming: Mapping[int, torch.Tensor]) -> None:
        if outgoing or incoming:
            raise ValueError(f"{name}: a group of one has no other rank")


ALONE: Group = _Alone()


@dataclass(frozen=True)
class ContextShare:
    """The positions whose entries the pools hold: those p with p % count == index."""

    index: int = 0
    count: int = 1

    def kept(self, tokens: int) -> int:
        """How many of the positions 0 .. tokens - 1 are held. The entry of a held p is number p // count."""
        return (tokens - self.index + self.count - 1) // self.count


@dataclass(frozen=True)
class Parallel:
    """How a model is spread over ranks: each layer over all of them, positions of the cache over `context` of them.

    `context` divides the group's size. Ranks g * context .. (g + 1) * context - 1 hold all positions between them.
    """

    group: Group = field(default=ALONE)
    context: int = 1

    @property
    def rank(self) -> int:
        return self.group.rank

    @property
    def size(self) -> int:
        return self.group.size

    @property
    def share(self) -> ContextShare:
        return ContextShare(self.rank % self.context, self.context)

    @property
    def context_ranks(self) -> range:
        """The ranks that hold all positions between them, this one included, in the order of their shares."""
        first = self.rank - self.rank % self.context
        return range(first, first + self.context)
