"""Seam 4: how ranks find and reach each other.

A `Link` carries tensors among all ranks and control messages (step plans) from rank 0 to the others. A world of one
uses the same calls.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from .collectives import Group


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
    """An open connection of one rank to its group: tensors by collectives, messages by a control channel.

    Rank 0 leads: it publishes messages; every other rank receives them, does them in order, and reports. All waits have
    a deadline and raise RankError naming the ranks that were waited for. After an error the link is good for `close`
    only.
    """

    rank: int
    world_size: int
    group: Group
    """Of all ranks."""

    @abstractmethod
    def publish(self, message: bytes) -> None:
        """Rank 0: send `message` to all other ranks, in order."""

    @abstractmethod
    def collect(self, starting: bool = False, within_s: float = math.inf) -> list[bytes]:
        """Rank 0: the next report of every other rank, in their order. While they start they may take longer.

        `within_s` makes the deadline an earlier one.
        """

    @abstractmethod
    def receive(self, starting: bool = False) -> bytes:
        """Other ranks: the next message. Raises UnavailableError when rank 0 is gone, or silent for too long."""

    @abstractmethod
    def report(self, message: bytes) -> None:
        """Other ranks: send rank 0 a report."""

    @abstractmethod
    def abandon(self, reason: str) -> None:
        """From any thread: every wait on this link, of collectives as well, ends with RankError now and from now on."""

    @abstractmethod
    def check(self) -> None:
        """From any thread, without waiting: raise RankError when the group is known to have come apart."""

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
