"""A decode row has the same bits alone, beside other sequences, and in a window of drafts."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from glmserve.api import ForwardBatch, Segment
from glmserve.models.activations import sigmoid, swiglu
from glmserve.models.attention import ALIGNMENT, FORK_ELEMENTS, context, places
from glmserve.models.gguf import Gguf

from .paged import PAGE_TOKENS, VOCABULARY, Rows, forward, load, new_pools, write_random

SHAPES: dict[str, dict[str, Any]] = {
    "aligned": {"intermediate_size": 1376},
    "odd": {"hidden_size": 54, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 10},
    "biases": {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 6, "head_dim": 24},
}
PAGES = 60
WINDOW = 8


@pytest.fixture(params=[1, 2], ids=["1 thread", "2 threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=SHAPES)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("model")
    write_random(made, **SHAPES[request.param])
    return made


def window(tokens: list[int], start: int, pages: list[int]) -> Rows:
    return tokens, start, pages, False


def page_table(choose: random.Random, first: int, count: int) -> list[int]:
    """`count` pages from `first`, one after the other or shuffled: contexts are read either way."""
    pages = list(range(first, first + count))
    if choose.random() < 0.5:
        choose.shuffle(pages)
    return pages


def lonely(model: Any, pools: dict[str, torch.Tensor], rows: Rows) -> torch.Tensor:
    tokens, start, pages, _ = rows
    calls = (forward(model, pools, window([t], start + i, pages)) for i, t in enumerate(tokens))
    return torch.cat(list(calls))


def test_windows_of_1_to_8_rows_have_the_bits_of_their_rows_alone(directory: Path, threads: int) -> None:
    model, choose = load(directory), random.Random(0)
    for start in (0, 5, 27, 31, 32, 60, 101, 140):
        pools = new_pools(model, PAGES, seed=start)
        pages = page_table(choose, 3, 5)
        tokens = [choose.randrange(VOCABULARY) for _ in range(WINDOW)]
        expected = lonely(model, pools, window(tokens, start, pages))
        for count in range(1, WINDOW + 1):
            assert torch.equal(forward(model, pools, window(tokens[:count], start, pages)), expected[:count])


def test_batches_of_1_to_9_windows_have_the_bits_of_their_rows_alone(directory: Path, threads: int) -> None:
    model, choose = load(directory), random.Random(1)
    for count in range(1, 10):
        pools = new_pools(model, PAGES, seed=count)
        segments = []
        for i in range(count):
            tokens = [choose.randrange(VOCABULARY) for _ in range(choose.choice((1, 1, 3, WINDOW)))]
            segments.append(window(tokens, choose.randrange(180), page_table(choose, 6 * i, 6)))
        expected = torch.cat([lonely(model, pools, rows) for rows in segments])
        assert torch.equal(forward(model, pools, *segments), expected)


def test_43_rows_of_width_1376_have_the_bits_of_their_rows_alone(tmp_path: Path, threads: int) -> None:
    """A shape in which threads may cut a row in two."""
    write_random(tmp_path, intermediate_size=1376)
    model = load(tmp_path)
    pools = new_pools(model, 43, seed=43)
    segments = [window([i], 3 + i % 20, [i]) for i in range(43)]
    expected = torch.cat([lonely(model, pools, rows) for rows in segments])
    assert torch.equal(forward(model, pools, *segments), expected)


def test_a_row_is_the_same_beside_one_long_enough_for_more_threads(tmp_path: Path, threads: int) -> None:
    write_random(tmp_path, head_dim=128, num_key_value_heads=6, num_hidden_layers=1, max_position_embeddings=2048)
    model = load(tmp_path)
    limit = FORK_ELEMENTS // (128 * 6)
    pages = list(range(-(-limit // PAGE_TOKENS) + 1))
    pools = new_pools(model, len(pages) + 2, seed=9)
    long, short = window([7] * 4, limit - 3, pages), window([8, 9], 30, [len(pages), len(pages) + 1])
    expected = [lonely(model, pools, rows) for rows in (long, short)]
    assert torch.equal(forward(model, pools, long, short), torch.cat(expected))
    assert torch.equal(forward(model, pools, short, long), torch.cat(expected[::-1]))
    assert torch.get_num_threads() == threads


def test_smollm2_has_the_same_bits_alone_in_a_batch_and_in_a_window(smollm2: Path, threads: int) -> None:
    model = load(smollm2, Gguf)
    pools = new_pools(model, PAGES, seed=5)
    segments = [window([100 + i], 150 + 11 * i, list(range(10 * i, 10 * i + 10))) for i in range(5)]
    segments.append(window(list(range(500, 508)), 90, [55, 51, 52, 58, 53]))
    expected = torch.cat([lonely(model, pools, rows) for rows in segments])
    assert torch.equal(forward(model, pools, *segments), expected)
    assert torch.equal(forward(model, pools, segments[-1]), expected[-WINDOW:])


@pytest.mark.parametrize("inner", [80, 1376, 1536, 5632])
def test_swiglu_of_decode_rows_has_the_bits_of_its_rows_alone(inner: int, threads: int) -> None:
    """Torch's own silu over 43 rows of 1376 cuts one of them between two threads, and changes its bits."""
    x = torch.randn(144, 2 * inner, generator=torch.Generator().manual_seed(0))
    alone = torch.cat([swiglu(row, chunk=False) for row in x.split(1)])
    for rows in (2, 3, 7, 16, 42, 43, 44, 64, 99, 144):
        for first in range(0, 144 - rows, 20):
            assert torch.equal(swiglu(x[first : first + rows], chunk=False), alone[first : first + rows])


@pytest.mark.parametrize("columns", [1, 7, 8, 255, 256])
def test_sigmoid_has_the_bits_of_its_rows_alone(columns: int, threads: int) -> None:
    """Torch's own sigmoid over 33 rows of 8 computes the last row with another exponential."""
    x = torch.randn(300, columns, generator=torch.Generator().manual_seed(0))
    alone = torch.cat([sigmoid(row) for row in x.split(1)])
    for rows in (2, 3, 33, 129, 300):
        assert torch.equal(sigmoid(x[:rows]), alone[:rows])


def test_a_context_starts_on_a_cache_line_wherever_its_pages_are() -> None:
    pool = torch.randn(9, 3, 1, 10)
    for first in range(6):
        segment = Segment(0, 2, 5, torch.arange(first, first + 3), False)
        batch = ForwardBatch(torch.zeros(2), torch.zeros(2), torch.zeros(2), [segment], torch.zeros(0), page_entries=3)
        read = context(pool, places(batch)[0])
        assert torch.equal(read, pool[first : first + 3].flatten(0, 1)[:7])
        assert read.data_ptr() % ALIGNMENT == 0
