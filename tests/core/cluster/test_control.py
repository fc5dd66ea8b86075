"""Control messages: what arrives is what was sent, in order, or an error that says what is wrong with it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from glmserve.api import RankError
from glmserve.cluster.breaker import Breaker
from glmserve.cluster.control import HEADER, MAX_BYTES, Channel, Control, frame
from hypothesis import given, settings
from hypothesis import strategies as st

PATIENCE_S = 60


def group(size: int, epoch: int = 1) -> tuple[Control, list[Control]]:
    """Rank 0, and the others."""
    pairs = {rank: socket.socketpair() for rank in range(1, size)}
    leader = Control(0, {rank: Channel(here, rank, epoch) for rank, (here, _) in pairs.items()}, Breaker())
    return leader, [Control(rank, {0: Channel(there, 0, epoch)}, Breaker()) for rank, (_, there) in pairs.items()]


@pytest.fixture
def raw() -> Iterator[tuple[socket.socket, Control]]:
    """What rank 0 writes, and rank 1 of epoch 5."""
    here, there = socket.socketpair()
    with here:
        yield here, Control(1, {0: Channel(there, 0, 5)}, Breaker())


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 4), st.lists(st.one_of(st.binary(max_size=40), st.integers(0, 600_000).map(bytes)), max_size=8))
def test_messages_arrive_whole_and_in_order_and_so_do_reports(size: int, messages: list[bytes]) -> None:
    leader, followers = group(size)

    def follow(follower: Control) -> list[bytes]:
        got = []
        for _ in messages:
            got += follower.receive(PATIENCE_S)
            follower.send(b"%d" % follower.rank + got[-1], PATIENCE_S)
        return got

    with ThreadPoolExecutor(size) as pool:
        running = [pool.submit(follow, follower) for follower in followers]
        for message in messages:
            leader.send(message, PATIENCE_S)
        reports = [leader.receive(PATIENCE_S) for _ in messages]
    assert [each.result() for each in running] == [messages] * (size - 1)
    assert reports == [[b"%d" % rank + message for rank in range(1, size)] for message in messages]


def test_ranks_that_send_large_messages_to_each_other_do_not_stop_one_another() -> None:
    leader, (follower,) = group(2)

    def send_and_receive(control: Control) -> list[bytes]:
        control.send(bytes(5_000_000), PATIENCE_S)
        return control.receive(PATIENCE_S)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(send_and_receive, follower)
        assert send_and_receive(leader) == [bytes(5_000_000)]
        assert running.result() == [bytes(5_000_000)]


def flipped(message: bytes, place: int) -> bytes:
    return message[:place] + bytes([message[place] ^ 1]) + message[place + 1 :]


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        ([frame(b"a", 5, 1)], "message 1 in place of message 0, which is missing"),
        ([frame(b"a", 5, 0), frame(b"a", 5, 0)], "message 0 again"),
        ([frame(b"a", 4, 0)], "a message of epoch 4 in epoch 5"),
        ([flipped(frame(b"abc", 5, 0), HEADER.size)], "a damaged message in place of message 0"),
        ([flipped(frame(b"abc", 5, 0), HEADER.size - 1)], "a damaged message in place of message 0"),
        ([HEADER.pack(MAX_BYTES + 1, 5, 0, bytes(16))], "more than the 67108864 of the largest"),
    ],
)
def test_a_message_that_cannot_be_right_is_refused_by_what_is_wrong(
    raw: tuple[socket.socket, Control], sent: list[bytes], error: str
) -> None:
    rank_0, follower = raw
    for message in sent[:-1]:
        rank_0.sendall(message)
        assert follower.receive(PATIENCE_S) == [b"a"]
    rank_0.sendall(sent[-1])
    with pytest.raises(RankError, match=f"Rank 0 sent .*{error}") as raised:
        follower.receive(PATIENCE_S)
    assert raised.value.ranks == (0,)


@settings(max_examples=50, deadline=None)
@given(st.binary(min_size=1, max_size=50), st.data())
def test_no_changed_bit_is_taken_for_a_message(payload: bytes, data: st.DataObject) -> None:
    message = frame(payload, 5, 0)
    place = data.draw(st.integers(0, len(message) - 1))
    rank_0, there = socket.socketpair()
    follower = Control(1, {0: Channel(there, 0, 5)}, Breaker())
    with rank_0:
        # The rest of a message that became longer never comes.
        rank_0.sendall(flipped(message, place))
        with pytest.raises(RankError):
            follower.receive(0.01)


def test_a_message_larger_than_the_largest_is_not_sent() -> None:
    leader, _ = group(2)
    with pytest.raises(ValueError, match="larger than"):
        leader.send(bytes(MAX_BYTES + 1), PATIENCE_S)


def test_messages_before_an_end_are_received_and_then_the_end_is_named(raw: tuple[socket.socket, Control]) -> None:
    rank_0, follower = raw
    rank_0.sendall(frame(b"last", 5, 0))
    rank_0.close()
    assert follower.receive(PATIENCE_S) == [b"last"]
    with pytest.raises(RankError, match=r"Rank 0 closed its control channel\."):
        follower.receive(PATIENCE_S)


def test_a_follower_that_does_not_read_does_not_hold_up_rank_0_for_ever() -> None:
    leader, followers = group(3)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(followers[0].receive, PATIENCE_S)
        with pytest.raises(RankError, match="rank 2, to which it sends") as error:
            leader.send(bytes(8_000_000), 0.5)
        assert running.result() == [bytes(8_000_000)]
    assert error.value.ranks == (2,)


def test_rank_0_names_those_whose_reports_are_missing() -> None:
    leader, followers = group(4)
    followers[1].send(b"here", PATIENCE_S)
    with pytest.raises(RankError, match=r"Rank 0 waited 0\.1 s for ranks 1, 3, silent") as error:
        leader.receive(0.1)
    assert error.value.ranks == (1, 3)


def test_a_follower_says_that_rank_0_is_silent() -> None:
    _, followers = group(2)
    with pytest.raises(RankError, match=r"Rank 1 waited 0\.1 s for rank 0, silent"):
        followers[0].receive(0.1)


def test_a_tripped_breaker_ends_a_wait_and_all_later_ones() -> None:
    _, (follower,) = group(2)
    threading.Timer(0.1, follower._breaker.trip, ("no longer wanted",)).start()
    for call in (lambda: follower.receive(PATIENCE_S), lambda: follower.send(b"", PATIENCE_S)):
        with pytest.raises(RankError, match="no longer wanted"):
            call()
