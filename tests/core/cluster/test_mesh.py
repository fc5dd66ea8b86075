"""The one-shot exchange between real processes: what arrives, and how each fault is named."""

from __future__ import annotations

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from glmserve.api import RankError
from glmserve.cluster.mesh import HEADER, Mesh
from hypothesis import given, settings
from hypothesis import strategies as st

from .ranks import PATIENCE_S, meshes, ranks, tcp_pair, unix_pair

Pattern = dict[tuple[int, int], int]
"""Bytes from one rank to another."""


def content(sender: int, receiver: int, step: int, size: int) -> torch.Tensor:
    seed = (step * 8 + sender) * 8 + receiver
    return torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def follow(mesh: Mesh, steps: list[Pattern]) -> list[str]:
    """Makes the exchanges; says what arrived wrong."""
    wrong = []
    for step, pattern in enumerate(steps):
        mine = {b: content(a, b, step, size) for (a, b), size in pattern.items() if a == mesh.rank}
        theirs = {a: torch.zeros(size, dtype=torch.uint8) for (a, b), size in pattern.items() if b == mesh.rank}
        mesh.exchange(f"step {step}", mine, theirs)
        for a, tensor in theirs.items():
            if not torch.equal(tensor, content(a, mesh.rank, step, len(tensor))):
                wrong.append(f"step {step}, {a} to {mesh.rank}")
    return wrong


@st.composite
def exchanges(draw: st.DrawFn) -> tuple[int, list[Pattern]]:
    size = draw(st.integers(2, 4))
    sizes = st.one_of(st.just(0), st.integers(1, 4000), st.integers(150_000, 2_000_000))
    pairs = st.sampled_from([(a, b) for a in range(size) for b in range(size) if a != b])
    return size, draw(st.lists(st.dictionaries(pairs, sizes), min_size=1, max_size=6))


@settings(max_examples=20, deadline=None)
@given(exchanges())
def test_every_pattern_of_exchanges_delivers_what_was_sent(case: tuple[int, list[Pattern]]) -> None:
    size, steps = case
    with ranks(size, follow, steps) as group:
        assert follow(group.mesh, steps) == []
        assert [group.result(rank) for rank in range(1, size)] == [[]] * (size - 1)


@pytest.mark.parametrize("pair", [unix_pair, tcp_pair])
def test_payloads_larger_than_all_buffers_cross_in_both_directions(pair: Any) -> None:
    steps = [{(a, b): 3_000_001 for a in range(3) for b in range(3) if a != b}]
    with ranks(3, follow, steps, pair=pair) as group:
        assert follow(group.mesh, steps) == []
        assert [group.result(1), group.result(2)] == [[], []]
        assert group.mesh.exchanges == len(steps)


def add(mesh: Mesh, numel: int) -> torch.Tensor:
    """Terms of which the sum depends on the order."""
    return mesh.sum("sum", term(mesh.rank, numel))


def term(rank: int, numel: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(numel, generator=generator) * 10.0 ** torch.randint(-4, 5, (numel,), generator=generator)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_sum_has_the_bits_of_adding_in_the_order_of_ranks_on_every_rank(size: int) -> None:
    expected = term(0, 3000)
    for rank in range(1, size):
        expected = expected + term(rank, 3000)
    with ranks(size, add, 3000) as group:
        sums = [add(group.mesh, 3000), *(group.result(rank) for rank in range(1, size))]
    assert all(torch.equal(total, expected) for total in sums)


def test_tensors_of_every_type_and_shape_cross() -> None:
    tensors = [torch.tensor(2.5), torch.zeros(0, 3), torch.ones(2, 2, dtype=torch.bfloat16), torch.tensor([[True]])]
    a, b = meshes(2)
    for tensor in tensors:
        arrived = torch.empty_like(tensor)
        a.exchange("t", {1: tensor}, {})
        b.exchange("t", {}, {0: arrived})
        assert torch.equal(arrived, tensor)


def test_exchanges_are_counted_by_name() -> None:
    a, b = meshes(2)
    for name in ("x", "y", "x"):
        a.exchange(name, {1: torch.zeros(5)}, {})
    b.exchange("x", {}, {0: torch.zeros(5)})
    assert a.counts == {"x": 2, "y": 1}
    assert set(a.seconds) == {"x", "y"}
    assert (a.sent_bytes, b.sent_bytes, b.counts["x"]) == ({"x": 40, "y": 20}, {}, 1)
    assert (a.exchanges, b.exchanges) == (3, 1)


def test_a_rank_that_makes_another_exchange_is_named_with_both() -> None:
    a, b, _ = meshes(3)
    a.exchange("layer 3", {1: torch.zeros(7)}, {})
    with pytest.raises(RankError, match=r"Rank 0 .* 'layer 3' .*28 bytes.* rank 1 makes 'layer 4' .*28 bytes") as error:
        b.exchange("layer 4", {}, {0: torch.zeros(7)})
    assert error.value.ranks == (0,)


@pytest.mark.parametrize(("sent", "expected"), [(7, 9), (9, 7), (0, 100_000), (300_000, 0)])
def test_a_rank_that_sends_another_size_is_named_with_both(sent: int, expected: int) -> None:
    a, b = meshes(2, deadline_s=PATIENCE_S)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(a.exchange, "x", {1: torch.zeros(sent)}, {})
        with pytest.raises(RankError, match=f"{4 * sent} bytes.* {4 * expected} bytes") as error:
            b.exchange("x", {}, {0: torch.zeros(expected)})
        b.close()
    assert error.value.ranks == (0,)


def test_an_exchange_whose_own_deadline_passes_names_exactly_the_ranks_that_are_missing() -> None:
    a, b, *_ = meshes(4, deadline_s=0.2)
    b.exchange("x", {0: torch.zeros(3)}, {})
    with pytest.raises(RankError, match=r"Rank 0 waited 0\.2 s for ranks 2, 3 in 'x'\.") as error:
        a.exchange("x", {1: torch.zeros(3)}, {rank: torch.zeros(3) for rank in (1, 2, 3)})
    assert error.value.ranks == (2, 3)


def test_ranks_that_do_not_take_what_is_sent_are_named_too() -> None:
    a, *_ = meshes(3, deadline_s=0.2)
    with pytest.raises(RankError) as error:
        a.exchange("x", {1: torch.zeros(10), 2: torch.zeros(4_000_000)}, {})
    assert error.value.ranks == (2,)


def test_a_rank_that_sends_a_little_now_and_then_is_late_all_the_same() -> None:
    a, b = meshes(2, deadline_s=0.5)
    stop = threading.Event()

    def trickle() -> None:
        data = memoryview(bytes(64))
        while not stop.wait(0.02):
            b._sockets[0].send(data[:1])

    b._sockets[0].send(HEADER.pack(0, 40_000, b"x"))
    with ThreadPoolExecutor(1) as pool:
        pool.submit(trickle)
        try:
            with pytest.raises(RankError, match="waited"):
                a.exchange("x", {}, {1: torch.zeros(10_000)})
        finally:
            stop.set()


def test_the_first_error_is_raised_again_by_every_later_exchange() -> None:
    a, _, c = meshes(3, deadline_s=0.1)
    with pytest.raises(RankError, match="rank 1 in 'x'"):
        a.exchange("x", {}, {1: torch.zeros(3)})
    c.exchange("y", {0: torch.zeros(3)}, {})
    with pytest.raises(RankError, match="rank 1 in 'x'") as error:
        a.exchange("y", {}, {2: torch.zeros(3)})
    assert error.value.ranks == (1,)


def sums(mesh: Mesh) -> str:
    """Until it fails."""
    try:
        while True:
            mesh.sum("sum", torch.ones(3000))
    except RankError as error:
        return str(error)


def test_a_killed_rank_is_named_at_once() -> None:
    with ranks(4, sums) as group:
        threading.Timer(0.3, group.signal, (2, signal.SIGKILL)).start()
        begin = time.monotonic()
        error = sums(group.mesh)
        assert "closed its connection" in error
        assert time.monotonic() - begin < PATIENCE_S / 2
        # The first rank to see it leaves, and is then what another sees.
        reasons = [error, group.result(1), group.result(3)]
        assert any(reason.startswith("Rank 2 closed") for reason in reasons)


def test_a_stopped_rank_is_named_by_all_others_when_the_deadline_passes() -> None:
    with ranks(4, sums, deadline_s=1) as group:
        threading.Timer(0.3, group.signal, (2, signal.SIGSTOP)).start()
        error = sums(group.mesh)
        assert "Rank 0 waited 1 s for rank 2" in error


def test_abandoning_from_another_thread_ends_the_exchange_that_runs_and_all_later_ones() -> None:
    a, other = meshes(2)
    threading.Timer(0.1, a.breaker.trip, ("The other end is known to be dead.", (1,))).start()
    for _ in range(2):
        with pytest.raises(RankError, match="known to be dead") as error:
            a.exchange("x", {1: torch.zeros(4_000_000)}, {1: torch.zeros(1)})
        assert error.value.ranks == (1,)
    other.close()


def test_what_a_rank_waits_for_can_be_asked_from_another_thread() -> None:
    a, b, _ = meshes(3)
    b.exchange("x", {0: torch.zeros(3)}, {})
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(a.exchange, "x", {}, {1: torch.zeros(3), 2: torch.zeros(3)})
        while a.waits_for != {2}:
            assert not running.done()
        a.abandon("enough")
        assert isinstance(running.exception(), RankError)
    assert a.waits_for == set()


def test_an_exchange_with_nobody_takes_no_part() -> None:
    a, _ = meshes(2)
    a.exchange("x", {}, {})
    assert a.counts == {}
