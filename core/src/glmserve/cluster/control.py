"""Control messages between rank 0 and the others: framed, numbered and digested, over a stream socket each.

A lost, repeated, damaged or foreign message is an error with a name, never a plan that is carried out.
"""

from __future__ import annotations

import math
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping
from hashlib import blake2b

from glmserve.api import RankError

from .breaker import Breaker, named

HEADER = struct.Struct("<QQQ16s")
"""Bytes of the payload, epoch of the group, number of the message, digest of these three and the payload."""
FIELDS = struct.Struct("<QQQ")
DIGEST_BYTES = 16
MAX_BYTES = 64 << 20
"""Far more than a plan of a million tokens: whatever says more is no message."""
READ_BYTES = 1 << 16


def frame(payload: bytes, epoch: int, number: int) -> bytes:
    return HEADER.pack(len(payload), epoch, number, _digest(payload, epoch, number)) + payload


def _digest(payload: bytes, epoch: int, number: int) -> bytes:
    digest = blake2b(FIELDS.pack(len(payload), epoch, number), digest_size=DIGEST_BYTES)
    digest.update(payload)
    return digest.digest()


class Channel:
    """The messages to and from rank `peer`, over a socket that this owns. No call waits.

    `epoch` numbers the formations of a group: what a former one left behind is not taken for a message of this one.
    """

    def __init__(self, connection: socket.socket, peer: int, epoch: int) -> None:
        self.peer = peer
        self.inbox: deque[bytes] = deque()
        self._connection = connection
        self._connection.setblocking(False)
        self._epoch = epoch
        self._sent = self._received = 0
        self._unsent = b""
        self._coming = bytearray()

    def fileno(self) -> int:
        return self._connection.fileno()

    @property
    def unsent(self) -> bool:
        return bool(self._unsent)

    def post(self, payload: bytes) -> None:
        """Take a message on; `flush` sends it."""
        if len(payload) > MAX_BYTES:
            raise ValueError(f"a message of {len(payload)} bytes is larger than the {MAX_BYTES} of the largest")
        self._unsent += frame(payload, self._epoch, self._sent)
        self._sent += 1

    def flush(self) -> None:
        """Send what the connection takes now."""
        try:
            while self._unsent:
                self._unsent = self._unsent[self._connection.send(self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            raise self._lost() from None

    def take(self) -> None:
        """Move to the inbox what has come: some of it, so that no message is lost to an end that comes after it."""
        try:
            data = self._connection.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            raise self._lost()
        self._coming += data
        self._unpack()

    def _unpack(self) -> None:
        while len(self._coming) >= HEADER.size:
            size, epoch, number, digest = HEADER.unpack_from(self._coming)
            if size > MAX_BYTES:
                raise self._wrong(f"a message of {size} bytes, more than the {MAX_BYTES} of the largest")
            if len(self._coming) < HEADER.size + size:
                return
            payload = bytes(self._coming[HEADER.size : HEADER.size + size])
            del self._coming[: HEADER.size + size]
            if digest != _digest(payload, epoch, number):
                raise self._wrong(f"a damaged message in place of message {self._received}")
            if epoch != self._epoch:
                raise self._wrong(f"a message of epoch {epoch} in epoch {self._epoch}")
            if number != self._received:
                how = "again" if number < self._received else f"in place of message {self._received}, which is missing"
                raise self._wrong(f"message {number} {how}")
            self._received += 1
            self.inbox.append(payload)

    def close(self) -> None:
        self._connection.close()

    def _lost(self) -> RankError:
        return RankError(f"Rank {self.peer} closed its control channel.", [self.peer])

    def _wrong(self, what: str) -> RankError:
        return RankError(f"Rank {self.peer} sent {what}, over the control channel.", [self.peer])


class Control:
    """All channels of one rank: from rank 0 to every other, or from another to rank 0.

    Whatever waits also reads: a rank that reports while rank 0 publishes does not stop either of them.
    """

    def __init__(self, rank: int, channels: Mapping[int, Channel], breaker: Breaker) -> None:
        self.rank = rank
        self.waits_for: frozenset[int] = frozenset()
        """The ranks whose message is missing, or that do not take ours, in the call that runs; from any thread."""
        self._channels = dict(channels)
        self._breaker = breaker

    def send(self, message: bytes, deadline_s: float) -> None:
        """To every other rank. Returns when the connections have taken it."""
        try:
            self._breaker.check()
            for channel in self._channels.values():
                channel.post(message)
                channel.flush()
            self._wait(lambda channel: channel.unsent, deadline_s, "to which it sends a message")
        except RankError as error:
            raise self._breaker.fail(error) from None

    def receive(self, deadline_s: float) -> list[bytes]:
        """The next message of each other rank, in the order of ranks."""
        try:
            self._breaker.check()
            self._wait(lambda channel: not channel.inbox, deadline_s, "silent on the control channel")
        except RankError as error:
            raise self._breaker.fail(error) from None
        return [self._channels[rank].inbox.popleft() for rank in sorted(self._channels)]

    def close(self) -> None:
        for channel in self._channels.values():
            channel.close()

    def _wait(self, unfinished: Callable[[Channel], bool], deadline_s: float, what: str) -> None:
        deadline = time.monotonic() + deadline_s
        try:
            while left := [channel for channel in self._channels.values() if unfinished(channel)]:
                self.waits_for = frozenset(channel.peer for channel in left)
                poll = select.poll()
                poll.register(self._breaker, select.POLLIN)
                for channel in self._channels.values():
                    poll.register(channel, select.POLLIN | (select.POLLOUT if channel.unsent else 0))
                remaining = deadline - time.monotonic()
                ready = dict(poll.poll(math.ceil(remaining * 1000))) if remaining > 0 else {}
                if not ready:
                    text = f"Rank {self.rank} waited {deadline_s:g} s for {named(self.waits_for)}, {what}."
                    raise RankError(text, sorted(self.waits_for))
                self._breaker.check()
                for channel in self._channels.values():
                    if ready.get(channel.fileno(), 0) & select.POLLOUT:
                        channel.flush()
                    if ready.get(channel.fileno(), 0) & ~select.POLLOUT:
                        channel.take()
        finally:
            self.waits_for = frozenset()
