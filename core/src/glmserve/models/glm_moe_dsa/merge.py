"""What ranks that keep a context between them make of their parts: one selection, and one attention."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from .topk import best

NOWHERE = torch.iinfo(torch.int32).max
"""Stands for the position of a candidate that a rank does not have; it comes after every other."""
SCORES = 1 << 22
"""Candidates that are compared at once (16 MiB)."""


def packed_candidates(scores: torch.Tensor, positions: torch.Tensor, k: int) -> torch.Tensor:
    """int32 [rows, 2, k]: the bits of float32 scores [rows, k or fewer], and their positions; filled up with nothing.

    A candidate of 8 bytes, so that what is sent does not depend on how many tokens a rank keeps.
    """
    missing = k - scores.shape[1]
    scores = F.pad(scores, (0, missing), value=-torch.inf)
    positions = F.pad(positions.to(torch.int32), (0, missing), value=NOWHERE)
    return torch.stack((scores.view(torch.int32), positions), 1)


def merge_candidates(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """The k best of what packed_candidates made on every rank: int64 [rows, k], the positions, ascending.

    The order is that of one rank, the higher score and then the lower position, so the result does not depend on how
    the positions were dealt out, nor on the order of the parts. At least k candidates of a row have a position.
    """
    rows, _, k = parts[0].shape
    step = max(1, SCORES // (len(parts) * k))
    found = []
    for i in range(0, rows, step):
        packed = torch.cat([part[i : i + step] for part in parts], 2)
        positions, order = packed[:, 1].sort(1)
        chosen = best(packed[:, 0].gather(1, order).view(torch.float32), k)
        found.append(positions.gather(1, chosen).to(torch.int64))
    return torch.cat(found)


def partial(scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """scores: [rows, heads, entries], -inf for those that a row does not see. Returns their softmax, of the same shape,
    and the logarithm of what it was divided by, [rows, heads, 1]: -inf, with weights of zero, where nothing is seen."""
    total = scores.logsumexp(-1, keepdim=True)
    return scores.softmax(-1).masked_fill(total == -torch.inf, 0.0), total


def merge_partials(parts: Sequence[torch.Tensor], chunk: bool) -> torch.Tensor:
    """The attention over all entries from those over the entries of each rank, in the order of the ranks.

    Each part: [rows, heads, width + 1], the weighted sum and last its logsumexp. Returns [rows, heads, width].
    """
    totals = torch.stack([part[..., -1] for part in parts], -1)
    # Decode rows one by one: torch's exponential of an element may depend on how many come with it.
    weights = totals.softmax(-1) if chunk else torch.cat([row.softmax(-1) for row in torch.split(totals, 1)])
    merged = parts[0][..., :-1] * weights[..., :1]
    for i, part in enumerate(parts[1:], 1):
        merged = merged + part[..., :-1] * weights[..., i : i + 1]
    return merged
