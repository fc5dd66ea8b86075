"""What ranks make of their parts of a context is what one makes of the whole, however it was dealt out."""

from __future__ import annotations

import pytest
import torch
from glmserve.models.glm_moe_dsa import merge
from glmserve.models.glm_moe_dsa.merge import merge_candidates, merge_partials, packed_candidates, partial
from glmserve.models.glm_moe_dsa.topk import RunningTopK, best
from hypothesis import given, settings
from hypothesis import strategies as st

SEEDS = st.integers(0, 2**32)


def dealt(columns: int, ranks: int, generator: torch.Generator) -> list[torch.Tensor]:
    """Which columns each rank has, ascending; some ranks may have none."""
    owner = torch.randint(0, ranks, (columns,), generator=generator)
    return [(owner == rank).nonzero().flatten() for rank in range(ranks)]


@settings(max_examples=60, deadline=None)
@given(
    seed=SEEDS,
    rows=st.integers(1, 5),
    heads=st.integers(1, 9),
    entries=st.integers(1, 40),
    ranks=st.integers(1, 8),
    scale=st.sampled_from([0.0, 1.0, 30.0, 1e4, 1e30]),
    hidden=st.floats(0, 1),
    chunk=st.booleans(),
)
def test_any_split_of_a_softmax_merges_to_the_whole(
    seed: int, rows: int, heads: int, entries: int, ranks: int, scale: float, hidden: float, chunk: bool
) -> None:
    """With parts that have no entry, or none that some row sees, and scores far beyond what an exponential holds."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(rows, heads, entries, generator=generator) * scale
    seen = torch.rand(rows, 1, entries, generator=generator) >= hidden
    seen[..., 0] = True
    scores = scores.masked_fill(~seen, -torch.inf)
    values = torch.randn(rows, entries, 6, generator=generator)
    parts = []
    for columns in dealt(entries, ranks, generator):
        weights, total = partial(scores[..., columns])
        parts.append(torch.cat((torch.bmm(weights, values[:, columns]), total), -1))
    wanted = torch.bmm(scores.double().softmax(-1), values.double())
    assert (merge_partials(parts, chunk) - wanted).abs().max() < 1e-5


def test_a_part_without_entries_weighs_nothing() -> None:
    weights, total = partial(torch.empty(2, 3, 0))
    assert weights.shape == (2, 3, 0)
    assert (total == -torch.inf).all()
    weights, total = partial(torch.full((2, 3, 4), -torch.inf))
    assert (weights == 0).all()
    assert (total == -torch.inf).all()


def test_what_is_not_a_number_stays_so() -> None:
    """Broken weights must be found in the logits."""
    sound, broken = torch.randn(1, 2, 4), torch.randn(1, 2, 4)
    broken[0, 1, 2] = torch.nan
    parts = []
    for scores in (sound, broken):
        weights, total = partial(scores)
        parts.append(torch.cat((torch.bmm(weights, torch.ones(1, 4, 3)), total), -1))
    merged = merge_partials(parts, chunk=False)
    assert merged[0, 0].isfinite().all()
    assert merged[0, 1].isnan().all()


@settings(max_examples=30, deadline=None)
@given(seed=SEEDS, rows=st.integers(2, 9), heads=st.integers(1, 33), ranks=st.integers(2, 8))
def test_a_merged_row_has_the_bits_it_has_alone(seed: int, rows: int, heads: int, ranks: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    parts = [torch.randn(rows, heads, 21, generator=generator) * 5 for _ in range(ranks)]
    parts[0][::2, :, -1] = -torch.inf
    together = merge_partials(parts, chunk=False)
    for row in range(rows):
        alone = merge_partials([part[row : row + 1].clone() for part in parts], chunk=False)
        assert torch.equal(together[row : row + 1], alone)


@settings(max_examples=100, deadline=None)
@given(
    seed=SEEDS,
    rows=st.integers(1, 5),
    k=st.integers(1, 9),
    more=st.integers(1, 40),
    ranks=st.integers(2, 8),
    levels=st.sampled_from([1, 2, 5, 1000]),
    interleaved=st.booleans(),
)
def test_the_best_of_any_split_are_the_best_of_all(
    seed: int, rows: int, k: int, more: int, ranks: int, levels: int, interleaved: bool
) -> None:
    """With many equal scores, infinite ones, and ranks that have fewer than k candidates or none."""
    generator = torch.Generator().manual_seed(seed)
    tokens = k + more
    scores = torch.randint(0, levels, (rows, tokens), generator=generator).float() / levels - 0.5
    scores = scores.masked_fill(torch.rand(rows, tokens, generator=generator) < 0.2, -torch.inf)
    split = [torch.arange(tokens)[i::ranks] for i in range(ranks)] if interleaved else dealt(tokens, ranks, generator)
    parts = []
    for columns in split:
        running = RunningTopK(rows, k)
        for first in range(0, len(columns), 7):
            running.add(scores[:, columns[first : first + 7]], first)
        positions = columns[running.entries] if len(columns) else running.entries
        parts.append(packed_candidates(running.scores, positions, k))
    assert torch.equal(merge_candidates(parts), best(scores, k))
    assert torch.equal(merge_candidates(parts[::-1]), best(scores, k))


def test_what_is_not_a_number_loses_and_what_is_infinite_counts() -> None:
    running = RunningTopK(2, 3)
    broken, high, low = torch.nan, torch.inf, -torch.inf
    running.add(torch.tensor([[broken, 1.0, low, 2.0], [broken, broken, 0.0, broken]]), 0)
    running.add(torch.tensor([[broken, high, 1.0, broken], [low, low, 1.0, high]]), 4)
    running.add(torch.tensor([[1.5, broken], [broken, broken]]), 8)
    assert running.entries.tolist() == [[3, 5, 8], [2, 6, 7]]
    assert running.scores.tolist() == [[2.0, high, 1.5], [0.0, 1.0, high]]


def test_many_rows_are_merged_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [packed_candidates(torch.randn(50, 4), torch.arange(i, 16, 4).expand(50, -1), 4) for i in range(4)]
    whole = merge_candidates(parts)
    monkeypatch.setattr(merge, "SCORES", 100)
    assert torch.equal(merge_candidates(parts), whole)


def test_candidates_at_the_far_end_of_a_context_keep_their_positions() -> None:
    last = 1_048_575
    parts = [packed_candidates(torch.ones(1, 2), torch.tensor([[last - 4 + i, last - 2 + i]]), 2) for i in (0, 1)]
    assert merge_candidates(parts).tolist() == [[last - 4, last - 3]]
