"""A decode row of glm_moe_dsa has the same bits alone, beside other sequences, in a window of drafts, on any pages."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from glmserve.models.glm_moe_dsa import indexer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .glm import ODD, VOCABULARY, load, new_pools, write_random
from .paged import PAGE_TOKENS, Rows, forward

PAGES = 60
WINDOW = 8
KV_TYPES = ["float32", "bfloat16", "float8_e4m3"]
SHAPES: dict[str, dict[str, Any]] = {
    "aligned": {"num_hidden_layers": 4, "index_topk": 48},
    "odd": {"num_hidden_layers": 4, **ODD},
    # Wide enough that threads could cut rows in two.
    "wide": {
        "num_hidden_layers": 2,
        "first_k_dense_replace": 1,
        "n_routed_experts": 160,
        "moe_intermediate_size": 344,
        "intermediate_size": 1376,
        "kv_lora_rank": 128,
        "index_topk": 64,
    },
}


@pytest.fixture(params=[1, 2], ids=["1 thread", "2 threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=SHAPES)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("glm")
    write_random(made, **SHAPES[request.param])
    return made


def window(tokens: list[int], start: int, pages: list[int]) -> Rows:
    return tokens, start, pages, False


def some(choose: random.Random, count: int) -> list[int]:
    return [choose.randrange(VOCABULARY) for _ in range(count)]


def lonely(model: Any, pools: dict[str, torch.Tensor], rows: Rows) -> torch.Tensor:
    tokens, start, pages, _ = rows
    calls = [forward(model, pools, window([t], start + i, pages)) for i, t in enumerate(tokens)]
    return torch.cat(calls)


@pytest.mark.parametrize("kv_dtype", KV_TYPES)
def test_windows_of_1_to_8_rows_have_the_bits_of_their_rows_alone(directory: Path, threads: int, kv_dtype: str) -> None:
    """Pitfall 18: odd draft counts. Starts lie around the selection size and page edges."""
    model, choose = load(directory, kv_dtype), random.Random(0)
    topk = model.config.index_topk
    for start in (0, 27, 32, topk - 8, topk - 3, topk - 1, topk, 140):
        pools = new_pools(model, PAGES, seed=start)
        pages = choose.sample(range(PAGES), 5)
        tokens = some(choose, WINDOW)
        expected = lonely(model, pools, window(tokens, start, pages))
        for count in range(1, WINDOW + 1):
            assert torch.equal(forward(model, pools, window(tokens[:count], start, pages)), expected[:count])


def test_batches_of_windows_have_the_bits_of_their_rows_alone(directory: Path, threads: int) -> None:
    """Pitfall 19: requests with different draft counts in one batch."""
    model, choose = load(directory), random.Random(1)
    for count in (2, 3, 5, 9):
        pools = new_pools(model, PAGES, seed=count)
        lengths = [5, 8, 8][:count] + [choose.choice((1, 1, 3)) for _ in range(count - 3)]
        segments = [
            window(some(choose, n), choose.randrange(180), list(range(6 * i, 6 * i + 6))) for i, n in enumerate(lengths)
        ]
        expected = torch.cat([lonely(model, pools, rows) for rows in segments])
        assert torch.equal(forward(model, pools, *segments), expected)


@pytest.mark.parametrize("kv_dtype", KV_TYPES)
def test_neither_pages_nor_what_others_left_in_them_change_a_bit(directory: Path, threads: int, kv_dtype: str) -> None:
    model, choose = load(directory, kv_dtype), random.Random(2)
    tokens = some(choose, 150)
    outcomes = []
    for seed, pages in ((1, [0, 1, 2, 3, 4]), (2, [7, 8, 9, 10, 11]), (3, choose.sample(range(PAGES), 5))):
        pools, out = new_pools(model, PAGES, seed=seed), []
        for start, end in ((0, 64), (64, 128), (128, 141)):  # the prompt, cut on the grid
            out.append(forward(model, pools, (tokens[start:end], start, pages, True)))
        out += [forward(model, pools, window([tokens[i]], i, pages)) for i in range(141, 150)]
        outcomes.append(torch.cat(out))
    assert torch.equal(outcomes[0], outcomes[1])
    assert torch.equal(outcomes[0], outcomes[2])


def test_a_page_that_comes_from_a_cache_serves_as_the_one_computed(directory: Path) -> None:
    """Cached equals recomputed: every paged tensor, and nothing but paged tensors, is what a prefix leaves."""
    model, tokens = load(directory, "float8_e4m3"), some(random.Random(3), 160)
    pools = new_pools(model, 6, seed=1)
    forward(model, pools, (tokens[:128], 0, [0, 1, 2, 3, 4], True))
    expected = forward(model, pools, (tokens[128:], 128, [0, 1, 2, 3, 4], True))
    other = new_pools(model, PAGES, seed=2)
    pages = [30, 4, 9, 8, 55]
    for name, pool in pools.items():
        for source, page in zip(range(4), pages, strict=False):
            other[name][page] = pool[source]
    assert torch.equal(forward(model, other, (tokens[128:], 128, pages, True)), expected)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_batch_has_the_bits_of_its_rows_alone(data: st.DataObject, small: Any) -> None:
    seed = data.draw(st.integers(0, 2**32))
    lengths = data.draw(st.lists(st.integers(1, WINDOW), min_size=1, max_size=6))
    starts = data.draw(st.lists(st.integers(0, 180), min_size=len(lengths), max_size=len(lengths)))
    choose = random.Random(seed)
    pools = new_pools(small, PAGES, seed=seed % 1000)
    free = choose.sample(range(PAGES), PAGES)
    segments = [
        window(some(choose, n), start, free[7 * i : 7 * i + 7])
        for i, (n, start) in enumerate(zip(lengths, starts, strict=True))
    ]
    expected = torch.cat([lonely(small, pools, rows) for rows in segments])
    assert torch.equal(forward(small, pools, *segments), expected)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Any:
    made = tmp_path_factory.mktemp("glm")
    write_random(made, **SHAPES["aligned"])
    return load(made)


def test_streamed_scoring_selects_what_scoring_at_once_selects(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, outcomes = some(random.Random(4), 300), []
    for span in (PAGE_TOKENS, 3 * PAGE_TOKENS, 10_000):
        monkeypatch.setattr(indexer, "SPAN_KEYS", span)
        pools = new_pools(small, 12)
        out = [forward(small, pools, (tokens[:256], 0, list(range(11)), True))]
        out += [forward(small, pools, window([tokens[i]], i, list(range(11)))) for i in range(256, 300)]
        outcomes.append(torch.cat(out))
    for other in outcomes[1:]:
        assert (other - outcomes[0]).abs().max() < 1e-4
