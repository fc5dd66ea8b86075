"""Sampling is a pure function of (logits, parameters, history, seed, position)."""

from collections import Counter

import numpy as np
import pytest
from glmserve.engine.request import SamplingParams
from glmserve.engine.sampling import NotFiniteError, candidates, gumbel, logprob, sample
from hypothesis import given, settings
from hypothesis import strategies as st

rows = st.lists(st.floats(-20, 20, width=32), min_size=2, max_size=50).map(lambda v: np.array(v, dtype=np.float32))


def reference_candidates(scaled: np.ndarray, params: SamplingParams) -> set[int]:
    """Filters written the slow way: sort everything, walk, stop."""
    order = sorted(range(len(scaled)), key=lambda i: (-scaled[i], i))
    if params.top_k:
        order = order[: params.top_k]
    if params.top_p < 1:
        weights = np.exp(scaled[order] - scaled[order[0]])
        kept, mass = [], 0.0
        for i, weight in zip(order, weights, strict=True):
            kept.append(i)
            mass += weight
            if mass >= params.top_p * weights.sum() * (1 - 1e-12):
                break
        order = kept
    if params.min_p > 0:
        top = max(scaled[order])
        order = [i for i in order if np.exp(scaled[i] - top) >= params.min_p * (1 - 1e-12)]
    return set(order)


@given(rows, st.integers(0, 60), st.floats(0.05, 1.0), st.floats(0.0, 0.9))
def test_filters_agree_with_the_slow_way(logits: np.ndarray, top_k: int, top_p: float, min_p: float) -> None:
    params = SamplingParams(top_k=top_k, top_p=top_p, min_p=min_p)
    got = set(candidates(logits.astype(np.float64), params).tolist())
    expected = reference_candidates(logits.astype(np.float64), params)
    # The nucleus may differ by one ulp of the running sum at its edge.
    assert len(got ^ expected) <= 1
    assert got & expected


def test_a_nucleus_takes_the_larger_of_two_whose_exponentials_round_to_one() -> None:
    assert candidates(np.array([-1e-20, 0.0]), SamplingParams(top_p=0.4)).tolist() == [1]


@given(rows, st.integers(-(2**63), 2**64 - 1), st.integers(0, 2**20))
def test_the_same_arguments_give_the_same_token(logits: np.ndarray, seed: int, position: int) -> None:
    params = SamplingParams(temperature=0.8, seed=seed)
    assert sample(logits, params, position) == sample(logits.copy(), params, position)


@given(rows)
def test_greedy_takes_the_first_of_the_largest(logits: np.ndarray) -> None:
    assert sample(logits, SamplingParams(temperature=0), 5) == int(np.flatnonzero(logits == logits.max())[0])


def test_noise_of_a_token_does_not_depend_on_the_other_candidates() -> None:
    every = gumbel(3, 17, np.arange(100))
    some = gumbel(3, 17, np.array([5, 50]))
    assert some.tolist() == every[[5, 50]].tolist()


def test_noise_is_gumbel_distributed() -> None:
    draws = np.concatenate([gumbel(seed, position, np.arange(500)) for seed in range(20) for position in range(10)])
    assert abs(draws.mean() - np.euler_gamma) < 0.02  # the standard Gumbel's mean
    assert abs(draws.var() - np.pi**2 / 6) < 0.05  # and its variance
    ordered = np.sort(draws)
    distance = np.abs(np.exp(-np.exp(-ordered)) - np.arange(len(ordered)) / len(ordered)).max()
    assert distance < 1.95 / np.sqrt(len(ordered))  # Kolmogorov-Smirnov at 0.1 %


def test_frequencies_follow_the_softmax() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05], dtype=np.float32))
    for vary in ("seed", "position"):
        drawn = Counter(
            sample(logits, SamplingParams(seed=i if vary == "seed" else 1), 9 if vary == "seed" else i)
            for i in range(8000)
        )
        for token, share in enumerate((0.5, 0.3, 0.15, 0.05)):
            assert abs(drawn[token] / 8000 - share) < 0.025, (vary, token)


def test_penalties_and_bias() -> None:
    logits = np.array([2.0, 1.9, -1.0], dtype=np.float32)
    greedy = {"temperature": 0.0}
    assert sample(logits, SamplingParams(**greedy, frequency_penalty=0.2), 1, generated=Counter([0])) == 1
    assert sample(logits, SamplingParams(**greedy, presence_penalty=0.2), 1, generated=Counter([0])) == 1
    assert sample(logits, SamplingParams(**greedy, presence_penalty=0.2), 1, prompt=[0]) == 0
    assert sample(logits, SamplingParams(**greedy, repetition_penalty=1.5), 1, prompt=[0]) == 1
    assert sample(logits, SamplingParams(**greedy, logit_bias={2: 100.0}), 1) == 2
    assert sample(logits, SamplingParams(**greedy), 1, banned=[0]) == 1
    assert logits.tolist() == np.array([2.0, 1.9, -1.0], dtype=np.float32).tolist()


@settings(max_examples=30)
@given(rows)
def test_logprobs_sum_to_one_and_come_in_order(logits: np.ndarray) -> None:
    result = logprob(logits, 0, len(logits))
    assert sum(np.exp(p) for _, p in result.top) == pytest.approx(1.0)
    assert [p for _, p in result.top] == sorted((p for _, p in result.top), reverse=True)
    assert dict(result.top)[0] == result.logprob


def test_logits_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(NotFiniteError):
        sample(np.array([np.nan, 1.0], dtype=np.float32), SamplingParams(temperature=0), 1)
