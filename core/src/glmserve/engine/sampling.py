"""Choosing a token: a pure function of the logits row, the parameters, the history and the position.

Noise is counter-based: the Gumbel variate of a candidate depends on (seed, position, token id) alone, so a request's
tokens never depend on its batch mates, on drafting, or on how often a position is evaluated.
argmax(logit / T + Gumbel) draws from softmax(logit / T) (the Gumbel-max trick).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from .request import SamplingParams, TokenLogprob

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_MASK = (1 << 64) - 1

NUCLEUS_GUESS = 512
"""Candidates looked at first for top-p; the full sort is only paid for when they do not hold enough probability."""


class NotFiniteError(ValueError):
    """The logits hold no finite maximum: the model's arithmetic broke down."""


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finalizer of SplitMix64 (Steele, Lea, Flood 2014), wrapping modulo 2^64."""
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))


def gumbel(seed: int, position: int, ids: Ids) -> Floats:
    """Standard Gumbel variates, one per token id."""
    key = _mix(np.array([seed & _MASK], dtype=np.uint64) + _GOLDEN)
    key = _mix(key ^ _mix(np.array([position & _MASK], dtype=np.uint64) * _GOLDEN + _MIX_1))
    bits = _mix(key + (ids.astype(np.uint64) + np.uint64(1)) * _GOLDEN)
    uniform = ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    result: Floats = -np.log(-np.log(uniform))
    return result


def adjust(
    logits: npt.NDArray[np.float32],
    params: SamplingParams,
    prompt: Collection[int],
    generated: Counter[int],
    banned: Collection[int] = (),
) -> npt.NDArray[np.float32]:
    """Bias, penalties and bans applied to a copy; the row itself when there is nothing to apply."""
    repetition = params.repetition_penalty != 1.0
    counts = bool(generated) and (params.presence_penalty != 0.0 or params.frequency_penalty != 0.0)
    if not (params.logit_bias or repetition or counts or banned):
        return logits
    row = logits.copy()
    if repetition:
        seen = np.fromiter({*prompt, *generated}, dtype=np.int64)
        values = row[seen]
        row[seen] = np.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
    if counts:
        ids = np.fromiter(generated.keys(), dtype=np.int64)
        times = np.fromiter(generated.values(), dtype=np.float32)
        row[ids] -= params.frequency_penalty * times + params.presence_penalty
    for token, bias in params.logit_bias.items():
        row[token] += bias
    for token in banned:
        row[token] = -np.inf
    return row


def candidates(scaled: Floats, params: SamplingParams) -> Ids:
    """Token ids that top-k, top-p and min-p leave, in this order, ties broken by the smaller id.

    scaled: [vocab], logits over temperature.
    """
    ids = np.arange(len(scaled), dtype=np.int64)
    if params.top_k and params.top_k < len(ids):
        ids = _largest(scaled, params.top_k)
    if params.top_p < 1.0:
        ids = ids[_nucleus(scaled[ids], params.top_p)]
    if params.min_p > 0.0:
        top = scaled[ids]
        ids = ids[top >= top.max() + np.log(params.min_p)]
    return ids


def _largest(values: Floats, k: int) -> Ids:
    """Indices of the k largest, largest first; among equals the smaller index."""
    threshold = np.partition(values, len(values) - k)[len(values) - k]
    ids = np.flatnonzero(values >= threshold)
    result: Ids = ids[np.argsort(-values[ids], kind="stable")][:k]
    return result


def _nucleus(scaled: Floats, top_p: float) -> Ids:
    """Indices of the largest values, as few as hold `top_p` of the probability.

    Ordered by the values themselves: their exponentials can round to equal ones.
    """
    weights = np.exp(scaled - scaled.max())
    wanted = top_p * weights.sum()
    for count in (NUCLEUS_GUESS, len(scaled)):
        order = _largest(scaled, min(count, len(scaled)))
        mass = np.cumsum(weights[order])
        if mass[-1] >= wanted or len(order) == len(scaled):
            break
    result: Ids = order[: int(np.searchsorted(mass, wanted)) + 1]
    return result


def sample(
    logits: npt.NDArray[np.float32],
    params: SamplingParams,
    position: int,
    prompt: Collection[int] = (),
    generated: Counter[int] | None = None,
    banned: Collection[int] = (),
) -> int:
    """The token at `position`, from the logits of position - 1 ([vocab]). Raises NotFiniteError."""
    row = adjust(logits, params, prompt, generated or Counter(), banned)
    best = int(row.argmax())
    if not np.isfinite(row[best]):
        raise NotFiniteError("the model's output is not a number")
    if params.temperature == 0.0:
        return best
    scaled = (row.astype(np.float64) - float(row[best])) / params.temperature
    ids = candidates(scaled, params)
    return int(ids[np.argmax(scaled[ids] + gumbel(params.seed, position, ids))])


def logprob(logits: npt.NDArray[np.float32], token: int, top: int) -> TokenLogprob:
    """Log-probability of `token` and the `top` likeliest tokens under the unmodified distribution."""
    row = logits.astype(np.float64)
    peak = row.max()
    log_sum = peak + np.log(np.exp(row - peak).sum())
    best = tuple((int(i), float(row[i] - log_sum)) for i in _largest(row, min(top, len(row)))) if top else ()
    return TokenLogprob(token, float(row[token] - log_sum), best)
