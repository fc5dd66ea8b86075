"""Seam 4: how ranks find and reach each other.

A `Link` carries the control messages (step plans) from rank 0 to all ranks. A world of one uses the same calls.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar


@dataclass(frozen=True)
class Topology:
    """Who takes part. `hosts[r]` is the host of rank r."""

    hosts: tuple[str, ...] = ("localhost",)
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def world_size(self) -> int:
        return len(self.hosts)


@dataclass(frozen=True)
class Finding:
    """One observation of a preflight: `level` is "ok", "warning" or "error"."""

    level: str
    message: str


class Link(ABC):
    """An open connection of one rank to its group."""

    rank: int
    world_size: int

    @abstractmethod
    def publish(self, message: bytes) -> None:
        """Rank 0: deliver `message` to all other ranks, in order. Raises UnavailableError naming the lost rank."""

    @abstractmethod
    def close(self) -> None:
        """Leave the group. Closing twice is safe."""


class Transport(ABC):
    """A provider of the transport seam."""

    name: ClassVar[str]
    capabilities: ClassVar[frozenset[str]] = frozenset()
    requires: ClassVar[frozenset[str]] = frozenset()
    conflicts: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def preflight(self, topology: Topology) -> list[Finding]:
        """What can be said before anything is opened. Any "error" stops the start."""

    @abstractmethod
    def open(self, topology: Topology, rank: int) -> Link:
        """Join the group."""
