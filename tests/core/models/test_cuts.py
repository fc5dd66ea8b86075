"""Parts of layers are dealt out over ranks: nothing twice, nothing left out, as evenly as it goes."""

import pytest
from glmserve.api import ConfigError
from glmserve.models.cuts import Heads, attention, even, spread
from hypothesis import given
from hypothesis import strategies as st

COUNTS = st.integers(1, 64)


@given(st.integers(0, 1000), COUNTS)
def test_parts_follow_one_another_and_differ_by_one_at_most(total: int, parts: int) -> None:
    cut = even(total, parts)
    assert len(cut) == parts
    assert [i for part in cut for i in part] == list(range(total))
    sizes = [len(part) for part in cut]
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(0, 40), st.integers(1, 40))
def test_a_rank_without_a_part_is_refused(total: int, ranks: int) -> None:
    if ranks <= total:
        assert all(spread(total, ranks, "things"))
    else:
        with pytest.raises(ConfigError, match=rf"parallel\.tensor is {ranks}, .* only {total} things .*\.$"):
            spread(total, ranks, "things")


@st.composite
def spreads(draw: st.DrawFn) -> tuple[int, int, int]:
    """Query heads, key-value heads, ranks."""
    kv_heads, group = draw(st.integers(1, 12)), draw(st.integers(1, 12))
    return kv_heads * group, kv_heads, draw(st.integers(1, kv_heads * group))


@given(spreads())
def test_every_query_head_is_on_one_rank_with_the_key_value_heads_it_reads(shape: tuple[int, int, int]) -> None:
    heads, kv_heads, ranks = shape
    cut = attention(heads, kv_heads, ranks)
    assert len(cut) == ranks
    assert [head for rank in cut for head in rank.query] == list(range(heads))
    group = heads // kv_heads
    for rank in cut:
        assert len(rank.query) > 0
        assert sorted({head // group for head in rank.query}) == list(rank.kv)
        # Attention gives each key-value head of a rank equally many query heads, in order.
        per_kv = len(rank.query) // len(rank.kv)
        assert [rank.kv[i // per_kv] for i in range(len(rank.query))] == [head // group for head in rank.query]


@given(spreads())
def test_heads_are_spread_as_evenly_as_groups_allow(shape: tuple[int, int, int]) -> None:
    heads, kv_heads, ranks = shape
    cut = attention(heads, kv_heads, ranks)
    if ranks <= kv_heads:
        assert [rank.kv for rank in cut] == even(kv_heads, ranks)
    else:
        assert all(len(rank.kv) == 1 for rank in cut)
        sharers = [sum(rank.kv[0] == kv for rank in cut) for kv in range(kv_heads)]
        assert max(sharers) - min(sharers) <= 1


def test_smollm2_over_four_ranks() -> None:
    assert attention(9, 3, 4) == [
        Heads(range(2), range(1)),
        Heads(range(2, 3), range(1)),
        Heads(range(3, 6), range(1, 2)),
        Heads(range(6, 9), range(2, 3)),
    ]


def test_rows_of_heads_are_those_of_their_projections() -> None:
    assert Heads(range(3, 6), range(1, 2)).rows(64) == (range(192, 384), range(64, 128), range(64, 128))


@pytest.mark.parametrize(("heads", "kv_heads", "ranks"), [(9, 3, 10), (1, 1, 2), (6, 6, 8)])
def test_more_ranks_than_query_heads_are_refused_by_the_setting(heads: int, kv_heads: int, ranks: int) -> None:
    with pytest.raises(ConfigError, match=rf"parallel\.tensor is {ranks}, .* only {heads} query heads"):
        attention(heads, kv_heads, ranks)
