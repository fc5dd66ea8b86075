"""What a follower process inherits, and what it does first: see that it cannot outlive the process that started it."""

from __future__ import annotations

import ctypes
import json
import os
import signal
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from glmserve.api import ConfigError, Topology

VARIABLE = "GLMSERVE_RANK_FDS"
PR_SET_PDEATHSIG = 1
"""From linux/prctl.h."""


@dataclass(frozen=True)
class Inheritance:
    """Which rank of what a process is, and the open files it has for it. Nobody else has them: they are its proof."""

    rank: int
    hosts: tuple[str, ...]
    options: Mapping[str, Any]
    parent: int
    epoch: int
    mesh: Mapping[int, int]
    """By rank."""
    control: int
    """To rank 0, as the next."""
    faults: int
    store: int
    """A file that only the ranks of this epoch have, and that has no name which anybody would have to remove."""

    @property
    def topology(self) -> Topology:
        return Topology(self.hosts, self.options)

    @property
    def files(self) -> tuple[int, ...]:
        return (*self.mesh.values(), self.control, self.faults, self.store)

    def pack(self) -> dict[str, str]:
        """As environment."""
        return {VARIABLE: json.dumps(asdict(self))}


def inherit(environ: Mapping[str, str] | None = None) -> Inheritance:
    """First of all in a follower's main: from here on this process ends when the one that started it does, or tells it
    to, and not for a signal that can be caught."""
    text = (os.environ if environ is None else environ).get(VARIABLE)
    if text is None:
        raise ConfigError(
            "This is the program of a server's further ranks, which only a server starts; run that instead."
        )
    fields = json.loads(text)
    fields["hosts"] = tuple(fields["hosts"])
    fields["mesh"] = {int(rank): file for rank, file in fields["mesh"].items()}
    inheritance = Inheritance(**fields)
    die_with(inheritance.parent)
    # A service manager asks every process to end. Rank 0 lets running requests end first, and then tells the others.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    return inheritance


def die_with(parent: int) -> None:
    """End this process by SIGKILL, also while it is stopped, when the thread of process `parent` that started it ends.

    A parent that has ended before the kernel was told is seen by its number: orphans get another parent.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        raise SystemExit("the process that started this one is gone")
