"""Several ranks in one process: a thread for each, and queues between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, Queue
from typing import TypeVar

import torch
from glmserve.api import ALONE, Group

DEADLINE_S = 60
T = TypeVar("T")
Queues = Mapping[tuple[int, int], Queue[tuple[str, torch.Tensor]]]


class ThreadGroup(Group):
    """Checks that the ranks make the same exchanges with tensors of the shapes they expect, and counts them."""

    def __init__(self, rank: int, size: int, queues: Queues) -> None:
        self.rank, self.size = rank, size
        self._queues = queues
        self.names: list[str] = []
        self.sent_bytes: Counter[str] = Counter()
        """By the name of the exchange."""

    @property
    def exchanges(self) -> int:  # type: ignore[override]
        return len(self.names)

    def exchange(self, name: str, outgoing: Mapping[int, torch.Tensor], incoming: Mapping[int, torch.Tensor]) -> None:
        self.names.append(name)
        for rank, tensor in outgoing.items():
            assert rank != self.rank
            assert tensor.is_contiguous()
            self._queues[self.rank, rank].put((name, tensor.clone()))
            self.sent_bytes[name] += tensor.nbytes
        for rank, tensor in incoming.items():
            try:
                sent, payload = self._queues[rank, self.rank].get(timeout=DEADLINE_S)
            except Empty:
                raise AssertionError(f"rank {rank} never made {name}, for which rank {self.rank} waits") from None
            assert (sent, payload.shape, payload.dtype) == (name, tensor.shape, tensor.dtype), (rank, self.rank)
            tensor.copy_(payload)


def groups(size: int) -> list[Group]:
    """One for each rank, connected."""
    if size == 1:
        return [ALONE]
    queues: Queues = {(a, b): Queue() for a in range(size) for b in range(size) if a != b}
    return [ThreadGroup(rank, size, queues) for rank in range(size)]


def on_ranks(size: int, work: Callable[[Group], T]) -> list[T]:
    """What `work` returns on each of `size` ranks, which run side by side."""

    def one(group: Group) -> T:
        if size > 1:
            torch.set_num_threads(1)
        return work(group)

    with ThreadPoolExecutor(size) as pool:
        return [done.result() for done in [pool.submit(one, group) for group in groups(size)]]
