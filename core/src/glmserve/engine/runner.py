"""Executes a step plan on one rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from glmserve.api import ForwardBatch, Model, Segment

from .kv import PageMemory
from .plan import Rows, StepPlan


@dataclass(frozen=True)
class RowsResult:
    logits: torch.Tensor
    """float32 [rows.logits, vocabulary] on rank 0, [0, vocabulary] on the others"""
    last_hidden: torch.Tensor
    """float32 [hidden] of the last row: what every rank computes alike"""
    taps: Mapping[int, torch.Tensor]
    """layer -> float32 [len(rows.tokens), hidden]"""


class PageTable:
    """A sequence's pages, in a tensor that grows by doubling."""

    def __init__(self) -> None:
        self._pages = torch.empty(16, dtype=torch.int64)
        self._count = 0

    def replace_from(self, first: int, pages: Sequence[int]) -> None:
        """`pages` are those from index `first` on."""
        if first > self._count:
            raise ValueError(f"a page table of {self._count} pages cannot go on at {first}")
        self._count = first + len(pages)
        if self._count > len(self._pages):
            grown = torch.empty(2 * self._count, dtype=torch.int64)
            grown[:first] = self._pages[:first]
            self._pages = grown
        if pages:
            self._pages[first : self._count] = torch.tensor(pages)

    @property
    def pages(self) -> torch.Tensor:
        """int64 [pages], a view"""
        return self._pages[: self._count]


class Runner:
    """A prefill chunk is a call of its own, so that its shape depends on the grid alone; all decode rows share one."""

    def __init__(self, model: Model, memory: PageMemory, taps: Sequence[int] = ()) -> None:
        self._model = model
        self._memory = memory
        self._taps = tuple(taps)
        self._tables: dict[int, PageTable] = {}

    def execute(self, plan: StepPlan) -> list[RowsResult]:
        """Results in the order of `plan.rows`."""
        for sequence in plan.ended:
            self._tables.pop(sequence, None)
        for rows in plan.rows:
            self._tables.setdefault(rows.sequence, PageTable()).replace_from(rows.first_page, rows.pages)
        results: dict[int, RowsResult] = {}
        decode = [i for i, rows in enumerate(plan.rows) if not rows.chunk]
        if decode:
            results.update(zip(decode, self._call([plan.rows[i] for i in decode]), strict=True))
        for i, rows in enumerate(plan.rows):
            if rows.chunk:
                results[i] = self._call([rows])[0]
        return [results[i] for i in range(len(plan.rows))]

    def _call(self, group: Sequence[Rows]) -> list[RowsResult]:
        share, entries = self._memory.share, self._memory.page_entries
        token_ids: list[int] = []
        logit_rows: list[int] = []
        positions, slots, stored, segments = [], [], [], []
        for rows in group:
            first, count = len(token_ids), len(rows.tokens)
            pages = self._tables[rows.sequence].pages
            places = torch.arange(rows.start, rows.start + count)
            kept = (places % share.count == share.index).nonzero()[:, 0]
            entry = places[kept] // share.count
            token_ids += rows.tokens
            positions.append(places)
            stored.append(kept + first)
            slots.append(pages[entry // entries] * entries + entry % entries)
            logit_rows += range(first + count - rows.logits, first + count)
            segments.append(Segment(first, count, rows.start, pages, rows.chunk))
        batch = ForwardBatch(
            token_ids=torch.tensor(token_ids),
            positions=torch.cat(positions),
            slots=torch.cat(slots),
            segments=segments,
            logit_rows=torch.tensor(logit_rows, dtype=torch.int64),
            page_entries=entries,
            stored=None if share.count == 1 else torch.cat(stored),
            share=share,
            taps=self._taps,
        )
        with torch.inference_mode():
            output = self._model.forward(batch, self._memory.tensors)
        results, at = [], 0
        for rows, segment in zip(group, segments, strict=True):
            end = segment.first_row + segment.num_rows
            taps = {layer: tensor[segment.first_row : end] for layer, tensor in output.taps.items()}
            results.append(RowsResult(output.logits[at : at + rows.logits], output.hidden[end - 1], taps))
            at += rows.logits
        return results
