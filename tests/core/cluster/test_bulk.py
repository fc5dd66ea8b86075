"""Sums of large tensors by torch.distributed: the bits of a one-shot sum, and the same answers to every fault."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
import torch
from glmserve.api import Group, RankError
from glmserve.cluster import mesh as mesh_module
from glmserve.cluster.bulk import Bulk
from glmserve.cluster.local import LocalLink
from glmserve.cluster.mesh import Mesh
from hypothesis import given, settings
from hypothesis import strategies as st

from .ranks import PATIENCE_S, full_mesh
from .test_faults import forked
from .test_mesh import term

FAULT_DEADLINE_S = 1.0
GRACE_S = 5.0
"""What a loaded machine may take beyond a deadline."""
NUMEL = 2_000_000
"""Of a sum that takes long enough to be met in the middle."""


class Ranks:
    """All ranks, each with a thread of this process."""

    def __init__(self, size: int, store: Path, deadline_s: float = PATIENCE_S) -> None:
        torch.set_num_threads(1)
        ends = full_mesh(size)
        self.meshes = [Mesh(rank, ends[rank], deadline_s, store=str(store)) for rank in range(size)]
        self._pool = ThreadPoolExecutor(size)

    def all(self, work: Callable[[Mesh], torch.Tensor]) -> list[torch.Tensor]:
        return list(self._pool.map(work, self.meshes))

    def close(self) -> None:
        self._pool.shutdown()
        for mesh in self.meshes:
            mesh.close()


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, Ranks]]:
    ranks = {size: Ranks(size, tmp_path_factory.mktemp("store") / "store") for size in (2, 3, 4)}
    yield ranks
    for group in ranks.values():
        group.close()


@settings(max_examples=60, deadline=None)
@given(size=st.integers(2, 4), shape=st.lists(st.integers(1, 90), min_size=1, max_size=3))
def test_slices_add_up_to_the_bits_of_a_one_shot_sum(groups: dict[int, Ranks], size: int, shape: list[int]) -> None:
    """Terms of which the sum depends on the order, at sizes that no number of ranks divides, or fewer than ranks."""
    count = torch.Size(shape).numel()

    def both(mesh: Mesh) -> torch.Tensor:
        x = term(mesh.rank, count).view(shape)
        return torch.stack([Group.sum(mesh, "one shot", x), mesh.sum_slices("slices", x)])

    results = groups[size].all(both)
    expected = results[0][0]
    assert expected.shape == torch.Size(shape)
    assert all(torch.equal(one, expected) for result in results for one in result)


def test_a_transposed_tensor_is_summed_as_it_looks(groups: dict[int, Ranks]) -> None:
    results = groups[3].all(lambda mesh: mesh.sum_slices("t", term(mesh.rank, 35).view(5, 7).T))
    expected = sum((term(rank, 35).view(5, 7).T for rank in (1, 2)), term(0, 35).view(5, 7).T)
    assert all(torch.equal(result, expected) for result in results)


def test_what_is_worth_it_goes_in_slices_and_the_rest_in_one_shot(
    groups: dict[int, Ranks], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ranks send as much either way."""
    monkeypatch.setattr(mesh_module, "SAVED_BYTES", 4000)
    for size, numel, slices in (
        (2, 100_000, False),
        (3, 1497, False),
        (3, 1500, True),
        (4, 664, False),
        (4, 668, True),
    ):
        before = groups[size].meshes[0].sent_bytes["choice"]
        groups[size].all(lambda mesh, numel=numel: mesh.sum("choice", torch.ones(numel)))  # type: ignore[misc]
        one_shot = (size - 1) * numel * 4
        sent = groups[size].meshes[0].sent_bytes["choice"] - before
        assert (sent < one_shot) == slices, (size, numel)


def test_a_sum_in_slices_counts_as_one_exchange(groups: dict[int, Ranks]) -> None:
    before = [mesh.exchanges for mesh in groups[4].meshes]
    groups[4].all(lambda mesh: mesh.sum_slices("counted", torch.ones(4001)))
    assert [mesh.exchanges for mesh in groups[4].meshes] == [count + 1 for count in before]
    for mesh in groups[4].meshes:
        assert mesh.counts["counted"] == 1
        assert mesh.seconds["counted"] > 0
        # Two slices of 1001 numbers to each of three ranks, and how many numbers there are.
        assert mesh.sent_bytes["counted"] == 3 * (2 * 1001 * 4 + 8)


def test_a_rank_that_sums_another_number_of_numbers_is_named(tmp_path: Path) -> None:
    group = Ranks(3, tmp_path / "store")
    with closing(group):

        def one(mesh: Mesh) -> str:
            with pytest.raises(RankError) as error:
                mesh.sum_slices("mlp", torch.ones(30 + mesh.rank // 2))
            mesh.close()
            return str(error.value)

        found = group._pool.map(one, group.meshes)
        assert "Rank 2 is out of step: it sums 31 numbers in 'mlp' where rank 0 sums 30." in list(found)


class GoneAtOnce:
    """A group that knows already that a rank is gone."""

    def alltoall_base(self, *arguments: object) -> object:
        raise RuntimeError("Connection closed by peer\nand more")


def test_a_loss_that_gloo_knows_of_before_the_call_is_a_rank_error_too() -> None:
    bulk = Bulk(1, 3, "nowhere", 1.0, lambda: None)
    bulk._group = GoneAtOnce()
    with pytest.raises(RankError, match=r"Rank 1 lost some of ranks 0, 2 in 'mlp': Connection closed by peer\.$"):
        bulk.sum("mlp", torch.ones(6), time.monotonic() + 1)


def slices_for_ever(link: LocalLink) -> None:
    assert isinstance(link.group, Mesh)
    while True:
        assert link.group.sum_slices("mlp", torch.ones(NUMEL))[0] == link.world_size


@pytest.mark.parametrize(("number", "how"), [(signal.SIGSTOP, "does not answer"), (signal.SIGKILL, "is gone")])
@pytest.mark.parametrize("first", [True, False])
def test_a_rank_that_is_stopped_or_killed_inside_a_large_sum_is_named_within_the_deadline(
    tmp_path: Path, number: int, how: str, first: bool
) -> None:
    """After it has met the others: in the first large sum, while Gloo forms, or in a later one."""

    def work(link: LocalLink) -> None:
        assert isinstance(link.group, Mesh)
        if not first:
            link.group.sum_slices("mlp", torch.ones(NUMEL))
        if link.rank == 2:
            link.group._meet("mlp", NUMEL, time.monotonic() + PATIENCE_S)
            signal.raise_signal(number)
        slices_for_ever(link)

    with forked(work, deadline_s=FAULT_DEADLINE_S, directory=tmp_path) as group:
        begin = time.monotonic()
        with pytest.raises(RankError, match=rf"^Rank 2 {how}.*") as error:
            work(group.link)
        assert error.value.ranks == (2,)
        assert time.monotonic() - begin < FAULT_DEADLINE_S + GRACE_S


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_rank_that_is_stopped_or_killed_at_many_times_is_named(tmp_path: Path, rank: int, number: int) -> None:
    for i in range(30):
        directory = tmp_path / str(i)
        directory.mkdir()
        with forked(slices_for_ever, deadline_s=FAULT_DEADLINE_S, directory=directory) as group:
            after_s = 0.05 + 0.01 * i
            threading.Timer(after_s, os.kill, (group.pids[rank], number)).start()
            begin = time.monotonic()
            with pytest.raises(RankError) as error:
                slices_for_ever(group.link)
            assert error.value.ranks == (rank,), error.value
            assert time.monotonic() - begin < after_s + FAULT_DEADLINE_S + GRACE_S


def test_abandoning_ends_a_large_sum_at_once_though_gloo_waits_on(tmp_path: Path) -> None:
    """For rank 3, which is stopped inside the sum; once it has ended the others leave."""

    def work(link: LocalLink) -> None:
        assert isinstance(link.group, Mesh)
        link.group.sum_slices("mlp", torch.ones(NUMEL))
        if link.rank == 3:
            link.group._meet("mlp", NUMEL, time.monotonic() + PATIENCE_S)
            signal.raise_signal(signal.SIGSTOP)
        slices_for_ever(link)

    with forked(work, directory=tmp_path) as group:
        begin = time.monotonic()
        threading.Timer(0.5, group.link.abandon, ("the engine is stopped",)).start()
        with pytest.raises(RankError, match="the engine is stopped"):
            work(group.link)
        assert time.monotonic() - begin < PATIENCE_S / 4
        os.kill(group.pids[3], signal.SIGKILL)
        for rank in (1, 2):
            os.waitid(os.P_PID, group.pids[rank], os.WEXITED | os.WNOWAIT)
        assert time.monotonic() - begin < PATIENCE_S / 2


def test_forming_and_leaving_leaks_neither_files_nor_threads(tmp_path: Path) -> None:
    def once(i: int) -> tuple[int, int]:
        with closing(Ranks(3, tmp_path / str(i))) as group:
            group.all(lambda mesh: mesh.sum_slices("mlp", torch.ones(1000)))
            for mesh in group.meshes:
                mesh.breaker.close()
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    # The first one starts what all groups of a process share.
    first = once(0)
    assert [once(i) for i in range(1, 6)] == [first] * 5


def test_a_group_that_is_collected_late_touches_no_file_that_got_the_number_of_its_own(tmp_path: Path) -> None:
    store = os.memfd_create("store")
    ranks = Ranks(2, Path(f"/proc/self/fd/{store}"))
    ranks.all(lambda mesh: mesh.sum_slices("mlp", torch.ones(1000)))
    held = [mesh._bulk._group for mesh in ranks.meshes if mesh._bulk is not None]  # as by a traceback
    ranks.close()
    os.close(store)
    files = [(tmp_path / str(i)).open("w+b") for i in range(20)]
    assert store in {file.fileno() for file in files}
    held.clear()
    for file in files:
        assert file.read() == b""
        file.close()
