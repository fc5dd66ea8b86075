"""The k best of a stream of scores, in memory that does not grow with the stream.

Order of preference: the higher score, and of equal scores the lower position. It is a total order, so the result does
not depend on how the stream was cut. Ties are no rarity: the indexer's ReLU makes many scores exactly zero.
"""

from __future__ import annotations

import torch


class RunningTopK:
    """For each of `rows` rows the entries of its k best scores so far."""

    def __init__(self, rows: int, k: int) -> None:
        self._k = k
        self.scores = torch.empty(rows, 0)
        """float32 [rows, k], or fewer while fewer were added."""
        self.entries = torch.empty(rows, 0, dtype=torch.int64)
        """int64, of the same shape: the numbers of the entries, ascending."""

    def add(self, scores: torch.Tensor, first: int) -> None:
        """scores: float32 [rows, n] of the entries first, first + 1, ..., which come after all those added before."""
        columns = torch.arange(scores.shape[1])
        if self.scores.shape[1] == self._k:
            # Of a long stream hardly any entry gets this far: an equal score of a later one loses as well.
            columns = (scores > self.scores.amin(1, keepdim=True)).any(0).nonzero()[:, 0]
            if not len(columns):
                return
            scores = scores[:, columns]
        # Not a number comes from broken weights only; it must lose here, to be found and named in the logits.
        scores = scores.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
        self.scores = torch.cat((self.scores, scores), 1)
        self.entries = torch.cat((self.entries, (columns + first).expand(len(scores), -1)), 1)
        if self.scores.shape[1] > self._k:
            chosen = best(self.scores, self._k)
            self.scores, self.entries = self.scores.gather(1, chosen), self.entries.gather(1, chosen)


def best(scores: torch.Tensor, k: int) -> torch.Tensor:
    """Columns of the k best of each row, ascending: int64 [rows, k], for scores [rows, more than k] without NaN."""
    # Only the k-th value is taken from topk: which of several equal scores it picks is not defined.
    last = scores.topk(k, 1, sorted=False).values.amin(1, keepdim=True)
    above, equal = scores > last, scores == last
    room = k - above.sum(1, keepdim=True)
    chosen = above | (equal & (equal.cumsum(1) <= room))
    return chosen.nonzero()[:, 1].view(len(scores), k)
