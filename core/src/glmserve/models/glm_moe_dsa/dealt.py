"""Latent attention over a context whose positions are dealt out over ranks.

Each rank of a context group has some heads and the entries of some positions. It gets the absorbed queries of all
heads of the group, attends with them to the entries that it keeps, and returns to every rank the partial results of
its heads, which that rank merges. So one exchange brings the queries and one takes the results, whatever the number of
sequences: entries never travel.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..attention import Place, slots_of
from ..entries import Entry
from .call import Call, dense_rows
from .indexer import Selection
from .merge import merge_partials, partial
from .source import Source

SCORES = 1 << 22
"""Scores, or gathered elements, that a prefill chunk holds at once (16 MiB)."""


@dataclass(frozen=True)
class DealtAttention:
    """Attention of one layer."""

    source: Source
    entry: Entry

    def __call__(self, query: torch.Tensor, call: Call, selection: Selection) -> torch.Tensor:
        """query: [rows, own heads, latent width], absorbed and scaled. Returns [rows, own heads, kv rank]."""
        group, ranks = self.source.parallel.group, self.source.parallel.context_ranks
        heads = [len(self.source.heads[rank]) for rank in ranks]
        rows, _, width = query.shape
        queries = torch.cat(group.gather("queries", query, [(rows, count, width) for count in heads], ranks), 1)
        found = torch.cat(
            [self._segment(queries, place, chosen, call) for place, chosen in zip(call.where, selection, strict=True)]
        )
        pieces = dict(zip(ranks, torch.split(found, heads, 1), strict=True))
        own = pieces.pop(group.rank)
        incoming = {rank: torch.empty_like(own, memory_format=torch.contiguous_format) for rank in pieces}
        group.exchange("partials", {rank: piece.contiguous() for rank, piece in pieces.items()}, incoming)
        return merge_partials([own if rank == group.rank else incoming[rank] for rank in ranks], call.chunk)

    def _segment(self, queries: torch.Tensor, place: Place, chosen: torch.Tensor | None, call: Call) -> torch.Tensor:
        """[rows of the segment, heads, kv rank + 1]: as merge_partials takes it."""
        query = queries[place.first_row : place.first_row + place.num_rows]
        return self._chunk(query, place, chosen, call) if place.chunk else self._rows(query, place, chosen, call)

    def _rows(self, query: torch.Tensor, place: Place, chosen: torch.Tensor | None, call: Call) -> torch.Tensor:
        """Each row alone, over exactly its own entries."""
        dense = dense_rows(place, self.source.config.index_topk)
        context = self._span(place, place.kept(dense - 1), call) if dense else None
        out = []
        for i in range(place.num_rows):
            if context is not None and i < dense:
                entries = context.narrow(0, 0, place.kept(i))
            elif chosen is not None:
                kept, own = place.share, chosen[i - dense]
                own = own[own % kept.count == kept.index] // kept.count
                entries = self.entry.at(call.pools, self._slots(place, own, call))
            # A copy, hence an aligned one whatever the row's place in the call.
            out.append(self._attend(query[i : i + 1].clone(), entries[None]))
        return torch.cat(out)

    def _chunk(self, query: torch.Tensor, place: Place, chosen: torch.Tensor | None, call: Call) -> torch.Tensor:
        """The same for the rows of a prefill chunk, many at a time."""
        config = self.source.config
        dense = dense_rows(place, config.index_topk)
        out = []
        if dense:
            context = self._span(place, place.kept(dense - 1), call)
            step = max(1, SCORES // (query.shape[1] * max(1, len(context))))
            for i in range(0, dense, step):
                group = query[i : min(i + step, dense)]
                out.append(self._causal(group, context[: place.kept(i + len(group) - 1)], place, i))
        if chosen is not None:
            step = max(1, SCORES // (config.index_topk * config.latent_width))
            for i in range(0, len(chosen), step):
                own, missing = kept_first(chosen[i : i + step], place)
                entries = self.entry.at(call.pools, self._slots(place, own, call))
                out.append(self._attend(query[dense + i : dense + i + len(own)], entries, missing))
        return torch.cat(out)

    def _span(self, place: Place, count: int, call: Call) -> torch.Tensor:
        return self.entry.span(call.pools, place, 0, count)

    def _slots(self, place: Place, entries: torch.Tensor, call: Call) -> torch.Tensor:
        return slots_of(place, entries, call.pools[self.entry.parts[0].name].shape[1])

    def _attend(self, query: torch.Tensor, entries: torch.Tensor, missing: torch.Tensor | None = None) -> torch.Tensor:
        """query: [rows, heads, width]; entries: [rows, entries, width], each row's own, but those that are `missing`,
        bool [rows, entries]. [rows, heads, kv rank + 1]."""
        scores = torch.bmm(query, entries.transpose(1, 2))
        if missing is not None:
            scores.masked_fill_(missing[:, None], -torch.inf)
        weights, total = partial(scores)
        return torch.cat((torch.bmm(weights, entries[..., : self.source.config.kv_rank]), total), -1)

    def _causal(self, query: torch.Tensor, context: torch.Tensor, place: Place, first: int) -> torch.Tensor:
        """query: [rows, heads, width] of the segment's rows from `first` on; context: [entries, width], as many as the
        last of them sees. [rows, heads, kv rank + 1]."""
        rows, heads, width = query.shape
        scores = (query.view(rows * heads, width) @ context.T).view(rows, heads, len(context))
        seen = place.start + first + torch.arange(rows)
        positions = torch.arange(len(context)) * place.share.count + place.share.index
        weights, total = partial(scores.masked_fill_((positions > seen[:, None])[:, None], -torch.inf))
        latent = weights.view(rows * heads, len(context)) @ context[:, : self.source.config.kv_rank]
        return torch.cat((latent.view(rows, heads, -1), total), -1)


def kept_first(chosen: torch.Tensor, place: Place) -> tuple[torch.Tensor, torch.Tensor]:
    """chosen: int64 [rows, k], positions, of which this rank keeps some. (int64 [rows, n], those as entries, in order,
    n being the most that a row has; bool [rows, n], true where a row has fewer: entry 0 stands there)"""
    share = place.share
    kept = chosen % share.count == share.index
    counts = kept.sum(1, keepdim=True)
    longest = int(counts.max())
    order = (~kept).to(torch.uint8).argsort(dim=1, stable=True)[:, :longest]
    missing = torch.arange(longest) >= counts
    return (chosen.gather(1, order) // share.count).masked_fill(missing, 0), missing
