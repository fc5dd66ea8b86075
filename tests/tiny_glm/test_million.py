"""At 1,048,576 tokens the selection is that of a search in float64, and four ranks compute what one computes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from glmserve.engine.plan import Rows, StepPlan

from .million import (
    FULL,
    LAST,
    LAYERS,
    RANKS,
    SELECTS,
    TOKEN,
    TOPK,
    Chosen,
    Floats,
    Million,
    Side,
    best,
    recorded,
    scores,
)

pytestmark = pytest.mark.slow
TOLERANCE = 1e-4
CLOSE = 1e-6
"""Rounding of a score in float32, over the highest score."""
BOUNDARIES = [1 << 16, 1 << 17, 1 << 18, 1 << 19]


@pytest.fixture(scope="module", params=["float32", "float8_e4m3"])
def million(request: pytest.FixtureRequest) -> Million:
    return Million(request.param)


def decode(million: Million, side: Side, position: int = LAST, tokens: Sequence[int] = (TOKEN,)) -> torch.Tensor:
    """Logits of decode rows."""
    ((result,),) = side.run([StepPlan(1, (million.row(position, tokens),))])
    return result.logits


def of_one_rank(chosen: Chosen, rank: int = 0) -> dict[tuple[int, int], list[int]]:
    return {(layer, row): positions for (at, layer, row), positions in chosen.items() if at == rank}


def test_the_last_row_attends_to_its_needles_and_four_ranks_compute_what_one_does(million: Million) -> None:
    with recorded(million.one) as (chosen, _):
        wanted = decode(million, million.one)
    with recorded(million.four) as (spread, _):
        found = decode(million, million.four)
    for layer in range(LAYERS):
        needles = million.needles[SELECTS[layer]]
        for positions in (chosen[0, layer, LAST], *(spread[rank, layer, LAST] for rank in range(RANKS))):
            assert len(positions) == TOPK
            assert set(needles) <= set(positions)
            assert len(needles) < TOPK or positions == needles
    for rank in range(RANKS):
        assert of_one_rank(spread, rank) == of_one_rank(chosen)
    assert (found - wanted).abs().max() < TOLERANCE
    assert found.abs().max() > 1


def test_rows_anywhere_select_what_a_search_in_float64_finds(million: Million) -> None:
    """At the end and around powers of two; their entries of before are put back, for needles may lie there."""
    for position in (LAST, *(at + shift for at in BOUNDARIES for shift in (-1, 0, 1))):
        before = [pool[million.table[position // 64]].clone() for pool in million.pools.values()]
        with recorded(million.one) as (chosen, queries):
            wanted = decode(million, million.one, position)
        for layer in FULL:
            found = scores(queries[layer, position], million.read(million.keys(layer), slice(position + 1)))
            assert margin(found) > CLOSE, "in float32 either of two tokens may win; take another position"
            assert chosen[0, layer, position] == best(found), (position, layer)
        with recorded(million.four) as (spread, _):
            assert (decode(million, million.four, position) - wanted).abs().max() < TOLERANCE
        for rank in range(RANKS):
            assert of_one_rank(spread, rank) == of_one_rank(chosen)
        put_back(million, position // 64, before)


def margin(values: Floats) -> float:
    """Between the lowest score that is selected and the next one, over the largest."""
    last, next_one = np.partition(values, [-TOPK, -TOPK - 1])[[-TOPK, -TOPK - 1]]
    return float((last - next_one) / np.abs(values).max())


def put_back(million: Million, page: int, before: list[torch.Tensor]) -> None:
    """Into a page of the long sequence, on all ranks."""
    for memory in (*million.one.memories, *million.four.memories):
        share = memory.share
        for pool, stored in zip(memory.tensors.values(), before, strict=True):
            pool[million.table[page]].view(torch.uint8).copy_(stored.view(torch.uint8)[share.index :: share.count])


def test_a_window_and_a_sequence_beside_it_leave_the_last_row_its_bits(million: Million) -> None:
    page = LAST // 64
    before = [pool[million.table[page]].clone() for pool in million.pools.values()]
    tokens = [7, 11, 13, TOKEN]
    lonely = torch.cat([decode(million, million.four, LAST - 3 + i, [token]) for i, token in enumerate(tokens)])
    assert torch.equal(decode(million, million.four, LAST - 3, tokens), lonely)
    short = Rows(2, 0, tuple(range(3, 303)), 0, tuple(million.spare), 1, True)
    beside = Rows(2, 300, (17, 19), len(short.pages), (), 2, False)
    results = million.four.run(
        [StepPlan(1, (short,)), StepPlan(2, (beside, million.row(LAST - 3, tokens)))],
    )
    assert torch.equal(results[1][1].logits, lonely)
    put_back(million, page, before)


def test_a_chunk_at_the_end_has_the_selections_and_logits_of_one_rank(million: Million) -> None:
    """The last 24 rows of a prompt that fills the context."""
    page, first, tokens = LAST // 64, LAST - 23, list(range(3, 27))
    before = [pool[million.table[page]].clone() for pool in million.pools.values()]
    plan = StepPlan(1, (million.row(first, tokens, chunk=True),))
    with recorded(million.one) as (chosen, queries):
        ((wanted,),) = million.one.run([plan])
    with recorded(million.four) as (spread, _):
        ((found,),) = million.four.run([plan])
    for layer in FULL:
        keys = million.read(million.keys(layer))
        for position in (first, LAST - 13, LAST):
            values = scores(queries[layer, position], keys[: position + 1])
            assert margin(values) < CLOSE or chosen[0, layer, position] == best(values), (position, layer)
    alike = [
        i
        for i in range(24)
        if all(
            spread[rank, layer, first + i] == chosen[0, layer, first + i]
            for rank in range(RANKS)
            for layer in range(LAYERS)
        )
    ]
    assert len(alike) >= 22  # of two scores that are too close to tell either may win
    assert (found.logits[alike] - wanted.logits[alike]).abs().max() < TOLERANCE
    put_back(million, page, before)


@pytest.mark.parametrize("layer", range(LAYERS))
def test_what_is_selected_is_read_and_nothing_else(million: Million, layer: int) -> None:
    """Another latent at a needle's place changes the logits, one beside it not a bit; on every rank, at both ends and
    at the boundaries."""
    entry, needles = million.entry(layer), million.needles[SELECTS[layer]]
    plain = decode(million, million.four)
    with recorded(million.four) as (chosen, _):
        assert torch.equal(decode(million, million.four), plain)
    selected = set(chosen[0, layer, LAST])
    read = [0, 63, *BOUNDARIES, (1 << 19) - 1, LAST - 1]
    read += [next(p for p in needles[100:] if p % RANKS == rank) for rank in range(RANKS)]
    for position in read:
        assert position in needles
        shown = changed(million, entry, position)
        assert (shown - plain).abs().max() > 1e-3, position
        unread = next(p for p in range(position + 4, LAST) if p not in selected) if position < LAST - 9 else LAST - 9
        assert unread not in selected
        assert torch.equal(changed(million, entry, unread), plain), unread


def changed(million: Million, entry: object, position: int) -> torch.Tensor:
    """The logits of the last row when another latent stands at a position; what stood there is put back."""
    page = position // 64
    before = [pool[million.table[page]].clone() for pool in million.pools.values()]
    million.write(entry, position, 30 * torch.ones(80))  # type: ignore[arg-type]
    logits = decode(million, million.four)
    put_back(million, page, before)
    return logits
