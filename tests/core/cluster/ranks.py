"""Rank processes for tests: functions that run in forked children, each with its end of a full mesh."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from multiprocessing.connection import Connection
from typing import Any

import torch
from glmserve.cluster.mesh import Mesh

Work = Callable[..., Any]
CONTEXT = multiprocessing.get_context("fork")
PATIENCE_S = 60


def unix_pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair()


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = socket.create_connection(server.getsockname())
        return here, server.accept()[0]


def full_mesh(size: int, pair: Callable[[], tuple[socket.socket, socket.socket]] = unix_pair) -> list[dict[int, Any]]:
    """For each rank its socket to each other rank."""
    ends: list[dict[int, Any]] = [{} for _ in range(size)]
    for a in range(size):
        for b in range(a + 1, size):
            ends[a][b], ends[b][a] = pair()
    return ends


def meshes(size: int, deadline_s: float = PATIENCE_S, pair: Any = unix_pair) -> list[Mesh]:
    """All ranks in this process."""
    return [Mesh(rank, sockets, deadline_s) for rank, sockets in enumerate(full_mesh(size, pair))]


class Ranks:
    """Ranks 1 .. size - 1 in processes of their own; rank 0 is the test's own mesh."""

    def __init__(self, size: int, work: Work, arguments: Sequence[Any], deadline_s: float, pair: Any) -> None:
        ends = full_mesh(size, pair)
        self.processes: dict[int, Any] = {}
        self.results: dict[int, Connection] = {}
        for rank in range(1, size):
            here, there = CONTEXT.Pipe(duplex=False)
            process = CONTEXT.Process(
                target=self._child, args=(rank, ends, work, arguments, deadline_s, there), daemon=True
            )
            process.start()
            there.close()
            self.processes[rank], self.results[rank] = process, here
        for rank in range(1, size):
            for end in ends[rank].values():
                end.close()
        self.mesh = Mesh(0, ends[0], deadline_s)

    @staticmethod
    def _child(
        rank: int,
        ends: list[dict[int, Any]],
        work: Work,
        arguments: Sequence[Any],
        deadline_s: float,
        result: Connection,
    ) -> None:
        torch.set_num_threads(1)
        for other, sockets in enumerate(ends):
            if other != rank:
                for end in sockets.values():
                    end.close()
        with closing(Mesh(rank, ends[rank], deadline_s)) as mesh:
            try:
                outcome = work(mesh, *arguments)
            except Exception as error:
                outcome = error
            # Not Connection.send, which would leave tensors in memory that ends with this process.
            result.send_bytes(pickle.dumps(outcome))

    def result(self, rank: int) -> Any:
        """What `work` returned on this rank, or the exception it raised."""
        assert self.results[rank].poll(PATIENCE_S), f"rank {rank} gives no result"
        return pickle.loads(self.results[rank].recv_bytes())

    def signal(self, rank: int, number: int) -> None:
        os.kill(self.processes[rank].pid, number)

    def end(self) -> None:
        self.mesh.close()
        for process in self.processes.values():
            process.kill()
            process.join()


@contextmanager
def ranks(
    size: int, work: Work, *arguments: Any, deadline_s: float = PATIENCE_S, pair: Any = unix_pair
) -> Iterator[Ranks]:
    torch.set_num_threads(1)
    running = Ranks(size, work, arguments, deadline_s, pair)
    try:
        yield running
    finally:
        running.end()
