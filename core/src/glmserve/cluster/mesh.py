"""A group of ranks as a full mesh of stream sockets: each exchange is one message each way between two ranks.

At the sizes of a decoded token a sum costs what its system calls and wake-ups cost. So a message is a header of 64
bytes and the tensor's own memory in one call, nothing is copied, and `poll` is asked only when a call would wait.
Sums of tensors that are so large that bytes cost more than calls go by torch.distributed instead.
"""

from __future__ import annotations

import math
import select
import socket
import struct
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from glmserve.api import Group, RankError

from .breaker import Breaker, OutOfStepError, named
from .bulk import SAVED_BYTES, Bulk

if TYPE_CHECKING:
    import torch

HEADER = struct.Struct("<QQ48s")
"""Number of the message on its connection, bytes of the tensor, name of the exchange."""
NAME_BYTES = 48
GONE = select.POLLRDHUP | select.POLLHUP | select.POLLERR


class Mesh(Group):
    """One rank of a group, with a connected stream socket to each other rank, which it owns.

    An exchange that takes longer than `deadline_s` seconds fails. After the first error of any kind, of which the
    breaker knows, every exchange raises it again: messages may be half sent. `store` is a file of the group's own that
    all ranks can open, for the sums of large tensors; without one these are one-shot exchanges too.
    """

    def __init__(
        self,
        rank: int,
        sockets: Mapping[int, socket.socket],
        deadline_s: float,
        breaker: Breaker | None = None,
        store: str | None = None,
    ) -> None:
        self.rank, self.size = rank, len(sockets) + 1
        self.deadline_s = deadline_s
        self.breaker = breaker or Breaker()
        self.counts: Counter[str] = Counter()
        """Exchanges by name."""
        self.seconds: defaultdict[str, float] = defaultdict(float)
        """Time that passed in them, by name."""
        self.sent_bytes: Counter[str] = Counter()
        """Of tensors, by name."""
        self._sockets = dict(sockets)
        for connection in self._sockets.values():
            connection.setblocking(False)
            if connection.family in (socket.AF_INET, socket.AF_INET6):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sent = dict.fromkeys(sockets, 0)
        self._received = dict.fromkeys(sockets, 0)
        self.running = ""
        """The name of the exchange that runs."""
        self._sending: dict[int, _Message] = {}
        self._receiving: dict[int, _Message] = {}
        self._others = frozenset(sockets)
        self._bulk = Bulk(rank, self.size, store, deadline_s, self.breaker.check) if store is not None else None
        self._in_bulk = False

    def exchange(self, name: str, outgoing: Mapping[int, torch.Tensor], incoming: Mapping[int, torch.Tensor]) -> None:
        if not outgoing and not incoming:
            return
        with self._counted(name):
            self._exchange(name, outgoing, incoming, time.monotonic() + self.deadline_s)

    def sum(self, name: str, x: torch.Tensor) -> torch.Tensor:
        if self._bulk is None or self._bulk.saved_bytes(x) < SAVED_BYTES:
            return super().sum(name, x)
        return self.sum_slices(name, x)

    def sum_slices(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """`sum` by torch.distributed. Only where there is a store."""
        if self._bulk is None:
            raise ValueError("a mesh without a store has no group of torch.distributed")
        with self._counted(name):
            deadline = time.monotonic() + self.deadline_s
            self._meet(name, x.numel(), deadline)
            self._in_bulk = True
            total = self._bulk.sum(name, x, deadline)
            self.sent_bytes[name] += self._bulk.sent_bytes(x)
        return total

    def _meet(self, name: str, numel: int, deadline: float) -> None:
        """All ranks are about to sum as many numbers. Gloo names nobody that is late or out of step; this does."""
        import torch

        arrived = {rank: torch.zeros(1, dtype=torch.int64) for rank in self._sockets}
        self._exchange(name, dict.fromkeys(arrived, torch.tensor([numel])), arrived, deadline)
        for rank, theirs in arrived.items():
            if int(theirs) != numel:
                sizes = f"it sums {int(theirs)} numbers in {name!r} where rank {self.rank} sums {numel}"
                raise OutOfStepError(f"Rank {rank} is out of step: {sizes}.", [rank])

    def _exchange(
        self, name: str, outgoing: Mapping[int, torch.Tensor], incoming: Mapping[int, torch.Tensor], deadline: float
    ) -> None:
        label = name.encode()[:NAME_BYTES]
        for rank, tensor in incoming.items():
            payload = memory(tensor)
            header = HEADER.pack(self._received[rank], len(payload), label)
            self._receiving[rank] = _Message(memoryview(bytearray(HEADER.size)), payload, header)
            self._received[rank] += 1
        last, payload = None, memoryview(b"")
        for rank, tensor in outgoing.items():
            if tensor is not last:
                last, payload = tensor, memory(tensor)
            header = HEADER.pack(self._sent[rank], len(payload), label)
            self._sending[rank] = _Message(memoryview(header), payload)
            self._sent[rank] += 1
            self.sent_bytes[name] += len(payload)
        for rank in outgoing:
            self._send(rank)
        for rank in incoming:
            self._receive(rank)
        if self._sending or self._receiving:
            self._wait(name, deadline)

    @property
    def waits_for(self) -> set[int]:
        """The ranks whose bytes are missing, or that do not take ours, in the exchange that runs; from any thread.

        Of torch.distributed one only knows that it waits for the others.
        """
        return {*list(self._sending), *list(self._receiving), *(self._others if self._in_bulk else ())}

    def abandon(self, reason: str) -> None:
        """From any thread: the exchange that runs and all later ones raise RankError with this reason."""
        self.breaker.trip(reason)

    def disconnect(self) -> None:
        """The others see it. Of a large sum that was given up Gloo may still be about to do something."""
        for connection in self._sockets.values():
            connection.close()

    def close(self) -> None:
        """Returns once nothing is under way: at the end of a large sum that was given up, if there is one."""
        self.disconnect()
        if self._bulk is not None:
            self._bulk.close()

    @contextmanager
    def _counted(self, name: str) -> Iterator[None]:
        begin = time.monotonic()
        try:
            self.breaker.check()
            self.running = name
            yield
        except RankError as error:
            raise self.breaker.fail(error) from None
        finally:
            self.running = ""
            self._sending.clear()
            self._receiving.clear()
            self._in_bulk = False
        self.exchanges += 1
        self.counts[name] += 1
        self.seconds[name] += time.monotonic() - begin

    def _wait(self, name: str, deadline: float) -> None:
        """Send and receive what is left, whichever can go on."""
        poll = select.poll()
        poll.register(self.breaker, select.POLLIN)
        ranks = {self._sockets[rank].fileno(): rank for rank in self.waits_for}
        for file, rank in ranks.items():
            poll.register(file, self._events(rank))
        while self._sending or self._receiving:
            left = deadline - time.monotonic()
            ready = poll.poll(math.ceil(left * 1000)) if left > 0 else []
            if not ready:
                waited_for = self.waits_for
                text = f"Rank {self.rank} waited {self.deadline_s:g} s for {named(waited_for)} in {name!r}."
                raise RankError(text, sorted(waited_for))
            for file, events in ready:
                if file not in ranks:
                    self.breaker.check()
                    continue
                rank = ranks[file]
                if events & (select.POLLIN | GONE):
                    self._receive(rank)
                if events & (select.POLLOUT | GONE):
                    self._send(rank)
                if mask := self._events(rank):
                    poll.modify(file, mask)
                else:
                    poll.unregister(file)

    def _events(self, rank: int) -> int:
        return (select.POLLIN if rank in self._receiving else 0) | (select.POLLOUT if rank in self._sending else 0)

    def _send(self, rank: int) -> None:
        """What the connection takes now."""
        if message := self._sending.get(rank):
            try:
                while message.left:
                    message.advance(self._sockets[rank].sendmsg(message.buffers))
            except BlockingIOError:
                return
            except OSError as error:
                raise self._lost(rank) from error
            del self._sending[rank]

    def _receive(self, rank: int) -> None:
        """What has come until now."""
        if message := self._receiving.get(rank):
            try:
                while message.left:
                    if not (count := self._sockets[rank].recvmsg_into(message.buffers)[0]):
                        raise self._lost(rank)
                    message.advance(count)
                    if message.expected and len(message.buffers) < 2:
                        self._compare(rank, message)
            except BlockingIOError:
                return
            except OSError as error:
                raise self._lost(rank) from error
            del self._receiving[rank]

    def _lost(self, rank: int) -> RankError:
        return RankError(f"Rank {rank} closed its connection to rank {self.rank}.", [rank])

    def _compare(self, rank: int, message: _Message) -> None:
        if message.header != message.expected:
            (theirs, ours) = (HEADER.unpack(header) for header in (message.header, message.expected))
            does, waits = (
                f"{label.rstrip(bytes(1)).decode(errors='replace')!r} (message {number}, {size} bytes)"
                for number, size, label in (theirs, ours)
            )
            text = f"Rank {rank} is out of step: it makes {does} where rank {self.rank} makes {waits}."
            raise OutOfStepError(text, [rank])
        message.expected = b""


class _Message:
    """What is left to send or to fill: of the header, then of the tensor."""

    __slots__ = ("buffers", "expected", "header", "left")

    def __init__(self, header: memoryview, payload: memoryview, expected: bytes = b"") -> None:
        self.header = header
        self.expected = expected
        """The header that must come; empty once it has."""
        self.buffers = [header, payload]
        self.left = len(header) + len(payload)

    def advance(self, count: int) -> None:
        self.left -= count
        while self.buffers and count >= len(self.buffers[0]):
            count -= len(self.buffers.pop(0))
        if count:
            self.buffers[0] = self.buffers[0][count:]


def memory(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous tensor, not a copy of them."""
    import torch

    if not tensor.is_contiguous():
        raise ValueError(f"a tensor of shape {tuple(tensor.shape)} is not contiguous")
    return memoryview(tensor.detach().reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
