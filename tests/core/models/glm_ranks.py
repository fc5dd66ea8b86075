"""glm_moe_dsa on several ranks, each with pages of its own that hold all positions or its share of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from glmserve.api import ALONE, ContextShare, ForwardBatch, ForwardOutput, Group, PagedTensor, Parallel, Segment
from glmserve.models.dense import Dense
from glmserve.models.glm_moe_dsa import GlmMoeDsa
from glmserve.models.glm_moe_dsa.model import GlmMoeDsaModel
from glmserve.store.checkpoint import open_checkpoint

from .paged import Rows
from .ranks import ThreadGroup, on_ranks

GRID = [(1, 1), (2, 1), (2, 2), (3, 1), (3, 3), (4, 1), (4, 2), (4, 4)]
"""(ranks, of which so many hold the positions between them)"""
PAGE_ENTRIES = 4
"""Few, so that short contexts have many pages."""
Pools = dict[str, torch.Tensor]
Call = Sequence[Rows]
"""The segments of one call."""
T = TypeVar("T")


@dataclass
class Rank:
    model: GlmMoeDsaModel
    parallel: Parallel

    @property
    def names(self) -> list[str]:
        """Of the exchanges made so far."""
        group = self.parallel.group
        return [] if group is ALONE else list(group.names) if isinstance(group, ThreadGroup) else []


class Spread:
    """A model on several ranks."""

    def __init__(
        self, path: Path, ranks: int, context: int = 1, kv_dtype: str = "float32", resident: bool = True
    ) -> None:
        def load(group: Group) -> Rank:
            checkpoint, family, parallel = open_checkpoint(path), GlmMoeDsa(), Parallel(group, context)
            info = family.describe(checkpoint.config, kv_dtype)
            model = family.load(checkpoint, Dense(), info, parallel, resident)
            assert isinstance(model, GlmMoeDsaModel)
            return Rank(model, parallel)

        self.ranks = on_ranks(ranks, load)

    def each(self, work: Callable[[Rank], T]) -> list[T]:
        """What `work` returns on each rank; all are at it side by side."""

        def one(group: Group) -> T:
            with torch.inference_mode():
                return work(self.ranks[group.rank])

        return on_ranks(len(self.ranks), one)

    def pools(self, pages: int, seed: int | None = None) -> list[Pools]:
        """Of each rank: zeros, or with a seed the random remains of a context."""
        return [
            new_pools(rank.model.info.paged, pages, None if seed is None else 100 * seed + i)
            for i, rank in enumerate(self.ranks)
        ]

    def outputs(
        self, pools: Sequence[Pools], calls: Sequence[Call], taps: tuple[int, ...] = ()
    ) -> list[list[ForwardOutput]]:
        """By rank and call."""

        def run(rank: Rank) -> list[ForwardOutput]:
            own, share = pools[rank.parallel.rank], rank.parallel.share
            return [rank.model.forward(batch_of(call, share, taps), own) for call in calls]

        return self.each(run)

    def logits(self, pools: Sequence[Pools], calls: Sequence[Call]) -> torch.Tensor:
        """Of every row of every call, in order."""
        first, *others = self.outputs(pools, calls)
        vocabulary = self.ranks[0].model.info.vocab_size
        assert all(out.logits.shape == (0, vocabulary) for outputs in others for out in outputs)
        return torch.cat([out.logits for out in first])


def new_pools(paged: Sequence[PagedTensor], pages: int, seed: int | None = None) -> Pools:
    generator = torch.Generator().manual_seed(seed or 0)
    made = {}
    for tensor in paged:
        shape = (pages, PAGE_ENTRIES, *tensor.per_token)
        content = torch.zeros(shape) if seed is None else torch.randn(shape, generator=generator)
        made[tensor.name] = (
            content.abs().to(getattr(torch, tensor.dtype))
            if "scale" in tensor.name
            else content.to(getattr(torch, tensor.dtype))
        )
    return made


def batch_of(call: Call, share: ContextShare = ContextShare(), taps: tuple[int, ...] = ()) -> ForwardBatch:  # noqa: B008
    """The batch that a rank with that share of the positions computes."""
    ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    stored: list[int] = []
    segments = []
    for tokens, start, pages, chunk in call:
        segments.append(Segment(len(ids), len(tokens), start, torch.tensor(pages), chunk))
        for row, position in enumerate(range(start, start + len(tokens)), len(ids)):
            entry = position // share.count
            if position % share.count == share.index:
                stored.append(row)
                slots.append(pages[entry // PAGE_ENTRIES] * PAGE_ENTRIES + entry % PAGE_ENTRIES)
        ids += tokens
        positions += range(start, start + len(tokens))
    return ForwardBatch(
        torch.tensor(ids),
        torch.tensor(positions),
        torch.tensor(slots, dtype=torch.int64),
        segments,
        torch.arange(len(ids)),
        PAGE_ENTRIES,
        stored=None if share.count == 1 else torch.tensor(stored, dtype=torch.int64),
        share=share,
        taps=taps,
    )


def page_tables(sequences: int, tokens: int, seed: int = 5) -> tuple[list[list[int]], int]:
    """(page tables for so many tokens, in which no page follows another one of its sequence; how many pages)"""
    each = -(-tokens // PAGE_ENTRIES)
    order: list[int] = torch.randperm(sequences * each + 3, generator=torch.Generator().manual_seed(seed)).tolist()
    return [order[i : i + sequences * each : sequences] for i in range(sequences)], len(order)


def in_cuts(ids: Sequence[int], cuts: Sequence[tuple[int, bool]], pages: Sequence[int]) -> list[Call]:
    """A sequence in calls of (rows, whether it is a chunk)."""
    calls: list[Call] = []
    start = 0
    for rows, chunk in cuts:
        calls.append([(list(ids[start : start + rows]), start, list(pages), chunk)])
        start += rows
    assert start == len(ids)
    return calls
