"""Engines whose other ranks are threads: the commands, reports and collectives of processes, without their start."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from queue import Empty, Queue
from typing import Any

import torch
from glmserve.api import Drafter, Group, Link, Model, Parallel, RankError
from glmserve.engine.caches import NoCache
from glmserve.engine.engine import Engine
from glmserve.engine.follower import follow
from glmserve.engine.kv import PageMemory
from glmserve.engine.ranks import Ranks
from glmserve.engine.scheduler import EngineOptions
from glmserve.engine.worker import Worker

from ..models.ranks import DEADLINE_S, groups

Load = Callable[[Parallel], Model]


@dataclass
class Wires:
    """Between rank 0 and one other."""

    down: Queue[bytes | None] = field(default_factory=Queue)
    up: Queue[bytes] = field(default_factory=Queue)


class ThreadLink(Link):
    def __init__(self, group: Group, wires: Sequence[Wires]) -> None:
        """`wires`: those to every other rank on rank 0, elsewhere the one to rank 0."""
        self.rank, self.world_size, self.group = group.rank, group.size, group
        self._wires = wires
        self.abandoned = ""

    def publish(self, message: bytes) -> None:
        self.check()
        for wire in self._wires:
            wire.down.put(message)

    def collect(self, starting: bool = False, within_s: float = math.inf) -> list[bytes]:
        try:
            return [wire.up.get(timeout=min(DEADLINE_S, within_s)) for wire in self._wires]
        except Empty:
            raise RankError("a rank did not report", ()) from None

    def receive(self, starting: bool = False) -> bytes:
        if (message := self._wires[0].down.get()) is None:
            raise RankError("rank 0 has left", (0,))
        return message

    def report(self, message: bytes) -> None:
        self._wires[0].up.put(message)

    def abandon(self, reason: str) -> None:
        self.abandoned = self.abandoned or reason

    def check(self) -> None:
        if self.abandoned:
            raise RankError(self.abandoned, ())

    def close(self) -> None:
        for wire in self._wires:
            wire.down.put(None)


@contextmanager
def running_ranks(
    size: int, context: int, load: Load, drafter: type[Drafter], options: EngineOptions
) -> Iterator[Ranks]:
    """Rank 0's view of `size` ranks, the others running."""
    wires = [Wires() for _ in range(size - 1)]
    connected = groups(size)

    def worker(group: Group) -> Worker:
        parallel = Parallel(group, context)
        model = load(parallel)
        memory = PageMemory(model.info, options.num_pages, options.page_tokens, parallel.share)
        runs_here = group.rank == 0 or drafter.replicated
        return Worker(model, memory, drafter(model.info, {}) if runs_here else None, group)

    def other(group: Group) -> None:
        torch.set_num_threads(1)
        with suppress(RankError):  # of a test that ends the group by an error
            follow(worker(group), ThreadLink(group, [wires[group.rank - 1]]))

    threads = [threading.Thread(target=other, args=(group,), daemon=True) for group in connected[1:]]
    for thread in threads:
        thread.start()
    ranks = Ranks(worker(connected[0]), ThreadLink(connected[0], wires))
    try:
        yield ranks
    finally:
        ranks.close()
        for thread in threads:
            thread.join(DEADLINE_S)
            assert not thread.is_alive()


@contextmanager
def running_engine(size: int, context: int, load: Load, drafter: type[Drafter], **sizes: int) -> Iterator[Engine]:
    options = EngineOptions(**{"max_context": 1024, "kv_tokens": 8192, "page_tokens": 24, "prefill_chunk": 48} | sizes)
    with running_ranks(size, context, load, drafter, options) as ranks:
        engine = Engine(
            ranks=ranks,
            eos_ids=frozenset({2}),
            options=options,
            cache=NoCache,
            cache_options={},
            fingerprint="tiny",
            exact=ranks.worker.model.row_invariant,
        )
        # The engine's thread is the rank's: it must compute as the threads of the others do.
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            engine.start()
            yield engine
        finally:
            engine.stop()
            torch.set_num_threads(threads)
        assert engine.check_integrity() == []


def logits_of(ranks: Ranks, plans: Sequence[Any]) -> torch.Tensor:
    return torch.cat([result.logits for plan in plans for result in ranks.execute(plan)])
