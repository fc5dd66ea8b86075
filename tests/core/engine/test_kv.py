"""A page has one owner or is free."""

from itertools import pairwise

import psutil
import pytest
from glmserve.api import ContextShare, ModelInfo, PagedTensor
from glmserve.engine.kv import PageMemory, PagePool
from hypothesis import given
from hypothesis import strategies as st

INFO = ModelInfo("t", 8, 4, 1, 64, (PagedTensor("k", (2, 3)), PagedTensor("v", (5,), "bfloat16")), (), "e", ())


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 12)), max_size=60))
def test_random_growth_and_release_keeps_the_books(actions: list[tuple[int, int]]) -> None:
    pool = PagePool(24, 8)
    owners: dict[int, list[int]] = {i: [] for i in range(6)}
    for owner, count in actions:
        pages = owners[owner]
        if count == 0:
            pool.release(pages)
            assert pages == []
        else:
            before, free = list(pages), pool.num_free
            if pool.grow(pages, count):
                assert pages[: len(before)] == before
                assert len(pages) == max(count, len(before))
            else:
                assert pages == before
                assert count - len(before) > free
        assert pool.check_integrity(owners.values()) == []


def test_a_lonely_sequence_gets_one_run_of_pages() -> None:
    pool = PagePool(16, 8)
    pages: list[int] = []
    for count in range(1, 17):
        assert pool.grow(pages, count)
    assert pages == list(range(16))


def test_two_growing_sequences_keep_apart() -> None:
    pool = PagePool(16, 8)
    first: list[int] = []
    second: list[int] = []
    for count in range(1, 7):
        pool.grow(first, count)
        pool.grow(second, count)
    for pages in (first, second):
        assert pages == list(range(pages[0], pages[0] + 6))


def test_a_long_context_in_pieces_takes_the_longest_first_and_looks_for_them_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A million tokens have 16,384 pages: a look at all of them for each piece would stop every stream for seconds."""
    pool = PagePool(2048, 64)
    others: list[list[int]] = []
    for i in range(0, 2048, 8):
        others.append([])
        pool.grow(others[-1], 3 + i // 8 % 4)
    for pages in others[1::2]:
        pool.release(pages)
    looked: list[int] = []
    look = PagePool._rooms
    monkeypatch.setattr(PagePool, "_rooms", lambda self: looked.append(0) or look(self))  # type: ignore[func-returns-value]
    pages = []
    assert pool.grow(pages, pool.num_free)
    assert len(looked) == 1
    assert pool.num_free == 0
    assert pool.check_integrity([pages, *others[::2]]) == []
    starts = [0, *(i for i in range(1, len(pages)) if pages[i] != pages[i - 1] + 1), len(pages)]
    lengths = [b - a for a, b in pairwise(starts)]
    assert len(lengths) > 100
    assert lengths == sorted(lengths, reverse=True)


def test_a_page_image_is_every_paged_tensor() -> None:
    memory = PageMemory(INFO, 4, 8)
    image = memory.image(2)
    assert {name: tuple(t.shape) for name, t in image.items()} == {"k": (8, 2, 3), "v": (8, 5)}
    image["k"].fill_(7)
    assert memory.tensors["k"][2].eq(7).all()
    assert memory.tensors["k"][1].eq(0).all()


def test_ranks_that_share_the_context_keep_a_page_between_them() -> None:
    memory = PageMemory(INFO, 4, 8, ContextShare(1, 4))
    assert {name: tuple(t.shape) for name, t in memory.image(0).items()} == {"k": (2, 2, 3), "v": (2, 5)}
    with pytest.raises(ValueError, match="8 tokens cannot be dealt out evenly over 3 ranks"):
        PageMemory(INFO, 4, 8, ContextShare(0, 3))


def test_faults_are_found() -> None:
    pool = PagePool(4, 8)
    pages: list[int] = []
    pool.grow(pages, 2)
    assert any("two owners" in fault for fault in pool.check_integrity([pages, pages]))
    assert any("lost" in fault for fault in pool.check_integrity([pages[:1]]))
    assert any("owned and free" in fault for fault in pool.check_integrity([pages, [3]]))


def test_a_pool_takes_memory_only_where_it_is_written() -> None:
    wide = ModelInfo("t", 8, 4, 1, 64, (PagedTensor("k", (64, 64)),), (), "e", ())
    before = psutil.Process().memory_info().rss
    memory = PageMemory(wide, 4096, 8)  # 512 MiB
    assert memory.tensors["k"].nbytes == 2**29
    memory.image(9)["k"].fill_(1)
    assert psutil.Process().memory_info().rss - before < 2**26
    assert memory.tensors["k"][10].eq(0).all()
