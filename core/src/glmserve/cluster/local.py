"""The built-in transport: `local`, one process a rank on this machine, connected by sockets that they inherit."""

from __future__ import annotations

import itertools
import math
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from glmserve.api import ALONE, ConfigError, Finding, Link, RankError, Topology, Transport, UnavailableError

from .breaker import Breaker
from .child import VARIABLE, Inheritance, inherit
from .control import Channel, Control
from .faults import FaultFinder, FaultReporter, Report
from .launcher import Followers
from .mesh import Mesh

MAX_RANKS = 8
LEAVE_S = 5.0
"""A follower that is told to leave has so long before it is made to."""


@dataclass(frozen=True)
class Limits:
    """The options: how long anybody waits, in seconds."""

    deadline_s: float = 60.0
    """For an exchange."""
    start_s: float = 600.0
    """For a report or a message while the ranks start: they import, load and are tested."""
    silence_s: float = 60.0
    """For a message of rank 0."""

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Limits:
        known = [field.name for field in fields(cls)]
        for name, value in options.items():
            if name not in known:
                raise ConfigError(f"Transport 'local' has no option {name!r}; it knows {', '.join(known)}.")
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0.1 <= value <= 86_400:
                raise ConfigError(f"{name} of transport 'local' is {value!r}; give seconds, from 0.1 to 86400.")
        return cls(**options)


@dataclass(frozen=True)
class Ends:
    """One rank's sockets, by the rank at their other end."""

    mesh: Mapping[int, socket.socket]
    control: Mapping[int, socket.socket]
    faults: Mapping[int, socket.socket]


class LocalLink(Link):
    """Of any rank. A world of one has no sockets, no threads and no processes.

    In the open file `store`, which it owns, the ranks find each other for torch.distributed, here over Gloo; between
    GPUs a transport has a group of its own, over NCCL.
    """

    def __init__(
        self, rank: int, world_size: int, ends: Ends, limits: Limits, epoch: int, store: int | None = None
    ) -> None:
        self.rank, self.world_size = rank, world_size
        self.followers: Followers | None = None
        self._store = store
        self._limits = limits
        self._breaker = Breaker()
        channels = {peer: Channel(end, peer, epoch) for peer, end in ends.control.items()}
        self._control = Control(rank, channels, self._breaker)
        path = None if store is None else f"/proc/self/fd/{store}"
        self._mesh = Mesh(rank, ends.mesh, limits.deadline_s, self._breaker, path) if world_size > 1 else None
        self.group = self._mesh or ALONE
        faults = {peer: Channel(end, peer, epoch) for peer, end in ends.faults.items()}
        self.finder = FaultFinder(faults, self._breaker, self._state) if rank == 0 and faults else None
        self._reporter = FaultReporter(faults[0], self._breaker, self._state) if rank > 0 else None

    def publish(self, message: bytes) -> None:
        self._control.send(message, self._limits.deadline_s)

    def collect(self, starting: bool = False, within_s: float = math.inf) -> list[bytes]:
        limit_s = self._limits.start_s if starting else self._limits.deadline_s
        return self._control.receive(min(limit_s, within_s))

    def receive(self, starting: bool = False) -> bytes:
        if self.world_size == 1:
            raise UnavailableError("A world of one has nobody to hear from.")
        (message,) = self._control.receive(self._limits.start_s if starting else self._limits.silence_s)
        return message

    def report(self, message: bytes) -> None:
        if self.world_size == 1:
            raise UnavailableError("A world of one has nobody to report to.")
        self._control.send(message, self._limits.deadline_s)

    def abandon(self, reason: str) -> None:
        self._breaker.trip(reason)
        if self.finder is not None:
            self.finder.note(RankError(reason, ()))
        if self._reporter is not None:
            self._reporter.note(RankError(reason, (self.rank,)))

    def check(self) -> None:
        self._breaker.check()

    def close(self) -> None:
        if self.finder is not None:
            self.finder.dismiss()
        # By these the others leave, those that were told to in order: to a channel for faults its end is one.
        self._control.close()
        if self._mesh is not None:
            self._mesh.disconnect()
        if self.followers is not None:
            # Those that did not answer will not leave either.
            self.followers.kill(self.finder.guilty if self.finder is not None else ())
            self.followers.stop(LEAVE_S)
        # Now that the others are gone nothing that Gloo still does can wait for them.
        for part in (self.finder, self._reporter, self._mesh, self._breaker):
            if part is not None:
                part.close()
        if self._store is not None:
            os.close(self._store)
            self._store = None

    def _state(self) -> Report:
        waits_for = {*self._control.waits_for, *(self._mesh.waits_for if self._mesh is not None else ())}
        return Report(tuple(sorted(waits_for)), self._mesh.running if self._mesh is not None else "")


class LocalTransport(Transport):
    """Rank 0 opens it in the server, and starts a process for each other rank, which opens it in turn."""

    name = "local"
    argv: ClassVar[Sequence[str]] = (sys.executable, "-P", "-m", "glmserve.follower")
    """What a follower runs; no module of the working directory is taken for one of Python's."""
    _epochs = itertools.count(1)

    def preflight(self, topology: Topology) -> list[Finding]:
        findings = []
        if not 1 <= topology.world_size <= MAX_RANKS:
            text = f"transport 'local' runs 1 to {MAX_RANKS} ranks, not {topology.world_size}; name as many hosts."
            findings.append(Finding("error", text))
        for host in sorted(set(topology.hosts) - {"localhost"}):
            text = f"transport 'local' runs ranks on this machine only; write 'localhost' for host {host!r}."
            findings.append(Finding("error", text))
        try:
            Limits.of(topology.options)
        except ConfigError as error:
            findings.append(Finding("error", str(error)))
        size = topology.world_size
        where = "one rank in this process" if size == 1 else f"{size} ranks, one in this process, {size - 1} in others"
        return findings or [Finding("ok", where)]

    def open(self, topology: Topology, rank: int) -> Link:
        errors = [finding.message for finding in self.preflight(topology) if finding.level == "error"]
        if errors:
            raise ConfigError(errors[0])
        limits = Limits.of(topology.options)
        if topology.world_size == 1:
            return LocalLink(0, 1, Ends({}, {}, {}), limits, 0)
        return self._lead(topology, limits) if rank == 0 else self._join(topology, limits, rank)

    def _join(self, topology: Topology, limits: Limits, rank: int) -> Link:
        inherited = inherit()
        if (topology, rank) != (inherited.topology, inherited.rank):
            raise ConfigError(f"This process was started as rank {inherited.rank} of {inherited.topology}.")
        # What this process starts gets neither.
        del os.environ[VARIABLE]
        for file in inherited.files:
            os.set_inheritable(file, False)
        ends = Ends(
            {peer: socket.socket(fileno=file) for peer, file in inherited.mesh.items()},
            {0: socket.socket(fileno=inherited.control)},
            {0: socket.socket(fileno=inherited.faults)},
        )
        return LocalLink(rank, topology.world_size, ends, limits, inherited.epoch, inherited.store)

    def _lead(self, topology: Topology, limits: Limits) -> Link:
        size, epoch = topology.world_size, next(self._epochs)
        try:
            ends, store = connected(size), os.memfd_create("glmserve")
        except OSError as error:
            raise _cannot_start(error) from error
        link = LocalLink(0, size, ends[0], limits, epoch, store)
        assert link.finder is not None
        try:
            inheritances = {
                rank: Inheritance(
                    rank,
                    topology.hosts,
                    topology.options,
                    os.getpid(),
                    epoch,
                    {peer: end.fileno() for peer, end in ends[rank].mesh.items()},
                    ends[rank].control[0].fileno(),
                    ends[rank].faults[0].fileno(),
                    store,
                )
                for rank in range(1, size)
            }
            # Output line by line; and threads of torch that wait do not take the cores from other ranks.
            common = {"OMP_WAIT_POLICY": "passive", **os.environ, "PYTHONUNBUFFERED": "1"}
            link.followers = Followers(
                self.argv,
                {rank: {**common, **inheritance.pack()} for rank, inheritance in inheritances.items()},
                {rank: inheritance.files for rank, inheritance in inheritances.items()},
                link.finder.ended,
            )
        except OSError as error:
            link.close()
            raise _cannot_start(error) from error
        finally:
            for mine in ends[1:]:
                for end in (*mine.mesh.values(), *mine.control.values(), *mine.faults.values()):
                    end.close()
        return link


def _cannot_start(error: OSError) -> UnavailableError:
    return UnavailableError(f"The ranks cannot be started: {error}.")


def connected(size: int) -> list[Ends]:
    """For each rank its ends: of a connection between every two ranks, and two more between rank 0 and each other."""
    ends: list[tuple[dict[int, socket.socket], ...]] = [({}, {}, {}) for _ in range(size)]
    for a, b in itertools.combinations(range(size), 2):
        for mine, theirs in zip(ends[a], ends[b], strict=True) if a == 0 else [(ends[a][0], ends[b][0])]:
            mine[b], theirs[a] = socket.socketpair()
    return [Ends(*of_rank) for of_rank in ends]
