"""Sums of large tensors by torch.distributed: each rank adds up one slice and sends it to all.

A one-shot exchange moves the whole tensor between every two ranks, this way two slices. A ring's all_reduce moves as
little, but adds each slice from another rank on: the bits of an element would depend on its place, and differ from
those of the one-shot sum. Here every slice is added in the order of the ranks.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from glmserve.api import RankError

from .breaker import named

if TYPE_CHECKING:
    import torch

SAVED_BYTES = 32 << 20
"""Where a rank sends so many bytes less than in a one-shot exchange, slices are no slower: with three ranks for tensors
of 48 MB and more, with four from 21 MB on. With two ranks it sends as many, and never saves any.

Measured by bench/collectives.py, with all ranks on one machine of two cores: between Unix sockets a byte costs less
than over Gloo's TCP, and a sum of some KB takes Gloo 4 to 47 times as long. With four ranks slices take 0.5 to 1.0 of
the time of an exchange at 24 to 96 MB, with three 0.8 to 1.3 at 48 to 96 MB, with two at least 1.3 at any size. More
than four ranks were not measured.
"""
LOOK_S = 0.02
"""Gloo's waits cannot be interrupted: so often one looks whether the group goes on."""


class Bulk:
    """A torch.distributed group of all ranks over the loopback, formed by the first sum; not the default group.

    `store` is a file of the group's own that all ranks can open, by which they find each other. No wait is longer than
    `deadline_s` seconds. `check` raises when the group does not go on; what Gloo still does then is left to itself,
    with buffers that nobody else uses.
    """

    def __init__(self, rank: int, size: int, store: str, deadline_s: float, check: Callable[[], None]) -> None:
        self.rank, self.size = rank, size
        self._store = store
        self._deadline_s = deadline_s
        self._check = check
        self._group: Any = None
        self._file = -1
        """The store's file, by whose number Gloo opens it again and again."""
        self._finished = False
        """The last sum was."""

    def saved_bytes(self, x: torch.Tensor) -> int:
        """How many bytes less a rank sends than in a one-shot exchange."""
        return (self.size - 1) * x.nbytes - self.sent_bytes(x)

    def sent_bytes(self, x: torch.Tensor) -> int:
        """What a rank sends: a slice to each other rank, twice."""
        return 2 * (self.size - 1) * -(-x.numel() // self.size) * x.element_size()

    def sum(self, name: str, x: torch.Tensor, deadline: float) -> torch.Tensor:
        """As Group.sum, bit for bit; all ranks call it at about the same time. `deadline`: of time.monotonic().

        Raises RankError naming all others: Gloo does not say which of them it waits for.
        """
        import torch

        self._finished = False
        if self._group is None:
            self._group = self._form(name, deadline)
        count = x.numel()
        width = -(-count // self.size)
        starts = [min(rank * width, count) for rank in range(self.size + 1)]
        cuts = [end - start for start, end in itertools.pairwise(starts)]
        mine = cuts[self.rank]
        # Slices of one width, of which the last may end in what is not part of the sum. What the others' slices take
        # up is free again when the sums come: a second buffer of this size costs as much as moving it.
        buffer = x.new_empty(self.size * width)
        parts = buffer[: self.size * mine]
        taken = x.contiguous().view(-1)
        self._wait(name, lambda: self._group.alltoall_base(parts, taken, [mine] * self.size, cuts), deadline)
        own = x.new_empty(width)
        first, second, *others = parts.view(self.size, mine)
        total = torch.add(first, second, out=own[:mine])
        for part in others:
            total += part
        self._wait(name, lambda: self._group._allgather_base(buffer, own), deadline)
        self._finished = True
        return buffer[:count].view(x.shape)

    def close(self) -> None:
        """Returns when what Gloo still does has ended: once the other ranks are gone, or at its deadline."""
        group = weakref.ref(self._group) if self._group is not None else None
        self._group = None
        # Gloo opens the file once more when the last of the group is collected, its unfinished work included, which an
        # exception's traceback may hold. Until then its number must not go to another file, which would be written to.
        if self._finished and group is not None and group() is None:
            os.close(self._file)

    def _form(self, name: str, deadline: float) -> Any:
        from torch._C._distributed_c10d import FileStore, PrefixStore, ProcessGroupGloo

        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        options._timeout = timedelta(seconds=self._deadline_s)
        formed: list[Any] = []
        done = threading.Event()
        self._file = os.open(self._store, os.O_RDWR | os.O_CREAT, 0o600)

        def form() -> None:
            try:
                store = PrefixStore("bulk", FileStore(f"/proc/self/fd/{self._file}", self.size))
                store.set_timeout(options._timeout)
                formed.append(ProcessGroupGloo(store, self.rank, self.size, options))
            except RuntimeError as error:
                formed.append(error)
            finally:
                done.set()

        # In a thread, because it cannot be interrupted either.
        threading.Thread(target=form, name="forming", daemon=True).start()
        while not done.wait(LOOK_S):
            self._check()
            self._late(name, deadline)
        (group,) = formed
        if isinstance(group, RuntimeError):
            raise self._failed(name, group)
        return group

    def _wait(self, name: str, begin: Callable[[], Any], deadline: float) -> None:
        try:
            work = begin()
        except RuntimeError as error:  # a rank that Gloo knows to be gone ends the call itself
            raise self._failed(name, error) from None
        while not work.is_completed():
            with contextlib.suppress(RuntimeError):
                work.wait(timedelta(seconds=LOOK_S))
            if not work.is_completed():
                self._check()
                self._late(name, deadline)
        try:
            # It has ended: this raises what it met.
            work.wait()
        except RuntimeError as error:
            raise self._failed(name, error) from None

    def _late(self, name: str, deadline: float) -> None:
        if time.monotonic() >= deadline:
            text = f"Rank {self.rank} waited {self._deadline_s:g} s for some of {named(self._others)} in {name!r}."
            raise RankError(text, self._others)

    def _failed(self, name: str, error: RuntimeError) -> RankError:
        why = str(error).splitlines()[0]
        return RankError(f"Rank {self.rank} lost some of {named(self._others)} in {name!r}: {why}.", self._others)

    @property
    def _others(self) -> list[int]:
        return [rank for rank in range(self.size) if rank != self.rank]
