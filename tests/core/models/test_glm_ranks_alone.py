"""On several ranks as on one, a decode row has the same bits alone, beside other sequences and in a window."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from .glm import ODD
from .glm_ranks import GRID, PAGE_ENTRIES, Call, Pools, Spread
from .paged import Rows
from .seeded import golden_config, write_seeded

PAGES = 300
WINDOW = 8
VOCABULARY = 512
NARROW = ["bfloat16", "float8_e4m3"]
SHAPES: dict[str, dict[str, Any]] = {
    "aligned": {"index_topk": 48},
    # Ranks, too, have something left over.
    "odd": {**ODD, "num_attention_heads": 7, "intermediate_size": 129},
}
SMALL = {
    "num_hidden_layers": 4,
    "indexer_types": ["full", "shared", "full", "shared"],
    "mlp_layer_types": ["dense", "sparse", "dense", "sparse"],
    "num_nextn_predict_layers": 0,
}


QUICK = {("aligned", (2, 1)), ("odd", (3, 3)), ("odd", (4, 2)), ("aligned", (4, 4))}
"""The rest of the grid is left to the slow run."""


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {shape: tmp_path_factory.mktemp(shape) for shape in SHAPES}
    for shape, directory in made.items():
        write_seeded(directory, golden_config() | SMALL | SHAPES[shape])
    return made


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((shape, sizes), id=f"{shape} {sizes}", marks=[] if (shape, sizes) in QUICK else [pytest.mark.slow])
        for shape in SHAPES
        for sizes in GRID
    ],
)
def spread(request: pytest.FixtureRequest, directories: dict[str, Path]) -> Spread:
    shape, sizes = request.param
    return Spread(directories[shape], *sizes)


def window(tokens: list[int], start: int, pages: list[int]) -> Rows:
    return tokens, start, pages, False


def some(choose: random.Random, count: int) -> list[int]:
    return [choose.randrange(VOCABULARY) for _ in range(count)]


def lonely(rows: Rows) -> list[Call]:
    tokens, start, pages, _ = rows
    return [[window([token], start + i, pages)] for i, token in enumerate(tokens)]


def page_table(choose: random.Random, tokens: int) -> list[int]:
    return choose.sample(range(PAGES), -(-tokens // PAGE_ENTRIES))


def test_windows_of_1_to_8_rows_have_the_bits_of_their_rows_alone(spread: Spread) -> None:
    """Starts lie around the selection size, page edges, and where some ranks keep no position yet."""
    choose, topk = random.Random(0), spread.ranks[0].model.config.index_topk
    for start in (0, 13, topk - 8, topk - 3, topk, 140):
        pools, pages = spread.pools(PAGES, seed=start), page_table(choose, start + WINDOW)
        tokens = some(choose, WINDOW)
        expected = spread.logits(pools, lonely(window(tokens, start, pages)))
        counts = (1, 2, 3, 5, 8) if start else range(1, WINDOW + 1)
        calls: list[Call] = [[window(tokens[:count], start, pages)] for count in counts]
        found = torch.split(spread.logits(pools, calls), list(counts))
        for count, logits in zip(counts, found, strict=True):
            assert torch.equal(logits, expected[:count]), (start, count)


def batch(choose: random.Random) -> Call:
    """Sequences of different lengths, some still dense, with windows of drafts, over pages of one another's between."""
    starts = [0, 3, choose.randrange(30), *(choose.randrange(180) for _ in range(4)), 178]
    tables = [-(-(start + WINDOW) // PAGE_ENTRIES) for start in starts]
    free = choose.sample(range(PAGES), sum(tables))
    call = []
    for start, count, rows in zip(starts, tables, (5, 8, 8, 1, 3, 1, 2, 1), strict=True):
        call.append(window(some(choose, rows), start, [free.pop() for _ in range(count)]))
    return call


def test_batches_have_the_bits_of_their_rows_alone(spread: Spread) -> None:
    choose = random.Random(1)
    for seed in range(2):
        pools, call = spread.pools(PAGES, seed=seed), batch(choose)
        found = spread.logits(pools, [call])
        assert torch.equal(found, spread.logits(pools, [one for rows in call for one in lonely(rows)]))


@pytest.mark.parametrize("kv_dtype", NARROW)
@pytest.mark.parametrize("sizes", [(2, 1), (4, 4)], ids=str)
def test_so_they_have_in_narrow_caches(directories: dict[str, Path], kv_dtype: str, sizes: tuple[int, int]) -> None:
    choose, spread = random.Random(2), Spread(directories["odd"], *sizes, kv_dtype)
    pools, call = spread.pools(PAGES, seed=7), batch(choose)
    found = spread.logits(pools, [call])
    assert torch.equal(found, spread.logits(pools, [one for rows in call for one in lonely(rows)]))


def test_neither_pages_nor_what_others_left_in_them_change_a_bit(spread: Spread) -> None:
    """A prompt in chunks and decoded rows: over pages that follow one another, and over scattered ones."""
    choose = random.Random(3)
    tokens, outcomes = some(choose, 150), []
    needed = -(-150 // PAGE_ENTRIES)
    for seed, pages in ((1, list(range(needed))), (2, list(range(50, 50 + needed))), (3, page_table(choose, 150))):
        pools: list[Pools] = spread.pools(PAGES, seed=seed)
        calls: list[Call] = [[(tokens[a:b], a, pages, True)] for a, b in ((0, 64), (64, 128), (128, 141))]
        calls += lonely(window(tokens[141:], 141, pages))
        outcomes.append(spread.logits(pools, calls))
    assert torch.equal(outcomes[0], outcomes[1])
    assert torch.equal(outcomes[0], outcomes[2])
