"""The k best of a stream of scores, in memory that does not grow with the stream.

Order of preference: the higher score, and of equal scores the lower position. It is a total order, so the result does
not depend on how the stream was cut. Ties are no rarity: the indexer's ReLU makes many scores exactly zero.
"""

from __future__ import annotations

import torch


class RunningTopK:
    """For each of `rows` rows the positions of its k best scores so far."""

    def __init__(self, k: int) -> None:
        self._k = k
        self._scores: torch.Tensor | None = None
        self._positions: torch.Tensor | None = None

    def add(self, scores: torch.Tensor, first: int) -> None:
        """scores: float32 [rows, n] of the positions first, first + 1, ..., which come after all those added before."""
        # Not a number comes from broken weights only; it must lose here, to be found and named in the logits.
        scores = scores.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
        positions = torch.arange(first, first + scores.shape[1]).expand(len(scores), -1)
        if self._scores is not None and self._positions is not None:
            scores = torch.cat((self._scores, scores), 1)
            positions = torch.cat((self._positions, positions), 1)
        if scores.shape[1] > self._k:
            chosen = best(scores, self._k)
            scores, positions = scores.gather(1, chosen), positions.gather(1, chosen)
        self._scores, self._positions = scores, positions

    def positions(self) -> torch.Tensor:
        """int64 [rows, k], ascending. At least k scores must have been added."""
        if self._positions is None or self._positions.shape[1] != self._k:
            raise ValueError(f"fewer than {self._k} scores were added")
        return self._positions


def best(scores: torch.Tensor, k: int) -> torch.Tensor:
    """Columns of the k best of each row, ascending: int64 [rows, k], for scores [rows, more than k] without NaN."""
    # Only the k-th value is taken from topk: which of several equal scores it picks is not defined.
    last = scores.topk(k, 1, sorted=False).values.amin(1, keepdim=True)
    above, equal = scores > last, scores == last
    room = k - above.sum(1, keepdim=True)
    chosen = above | (equal & (equal.cumsum(1) <= room))
    return chosen.nonzero()[:, 1].view(len(scores), k)
