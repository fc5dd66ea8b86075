"""Executes a step plan on one rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from glmserve.api import ForwardBatch, Model, Segment

from .kv import PagePool
from .plan import Rows, StepPlan


@dataclass(frozen=True)
class RowsResult:
    logits: torch.Tensor
    """float32 [rows.logits, vocabulary]"""
    taps: Mapping[int, torch.Tensor]
    """layer -> float32 [len(rows.tokens), hidden]"""


class Runner:
    """A prefill chunk is a call of its own, so that its shape depends on the grid alone; all decode rows share one."""

    def __init__(self, model: Model, pool: PagePool, taps: Sequence[int] = ()) -> None:
        self._model = model
        self._pool = pool
        self._taps = tuple(taps)

    def execute(self, plan: StepPlan) -> list[RowsResult]:
        """Results in the order of `plan.rows`."""
        results: dict[int, RowsResult] = {}
        decode = [i for i, rows in enumerate(plan.rows) if not rows.chunk]
        if decode:
            results.update(zip(decode, self._call([plan.rows[i] for i in decode]), strict=True))
        for i, rows in enumerate(plan.rows):
            if rows.chunk:
                results[i] = self._call([rows])[0]
        return [results[i] for i in range(len(plan.rows))]

    def _call(self, group: Sequence[Rows]) -> list[RowsResult]:
        page_tokens = self._pool.page_tokens
        token_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        logit_rows: list[int] = []
        segments = []
        for rows in group:
            first, count = len(token_ids), len(rows.tokens)
            places = range(rows.start, rows.start + count)
            token_ids += rows.tokens
            positions += places
            slots += [rows.pages[p // page_tokens] * page_tokens + p % page_tokens for p in places]
            logit_rows += range(first + count - rows.logits, first + count)
            segments.append(Segment(first, count, rows.start, torch.tensor(rows.pages), rows.chunk))
        batch = ForwardBatch(
            token_ids=torch.tensor(token_ids),
            positions=torch.tensor(positions),
            slots=torch.tensor(slots),
            segments=segments,
            logit_rows=torch.tensor(logit_rows, dtype=torch.int64),
            page_entries=page_tokens,
            taps=self._taps,
        )
        with torch.inference_mode():
            output = self._model.forward(batch, self._pool.tensors)
        results, at = [], 0
        for rows, segment in zip(group, segments, strict=True):
            span = slice(segment.first_row, segment.first_row + segment.num_rows)
            taps = {layer: tensor[span] for layer, tensor in output.taps.items()}
            results.append(RowsResult(output.logits[at : at + rows.logits], taps))
            at += rows.logits
        return results
