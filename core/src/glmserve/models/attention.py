"""Where a context lies in the pages, and grouped-query attention over paged keys and values.

A rank keeps an entry of every position of a context, or of its share of them; entry e of a share is that of position
e * count + index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from glmserve.api import ContextShare, ForwardBatch

FORK_ELEMENTS = 1 << 20
"""Elements of a row's keys from which more threads can help: below, waking them costs more than the sums."""
ALIGNMENT = 64
"""Bytes. A product's bits may depend on where its operands start within a cache line."""


@dataclass(frozen=True)
class Place:
    """Where a segment's rows and their context are: the same in every layer, so it is looked up once a call."""

    first_row: int
    num_rows: int
    start: int
    chunk: bool
    entries: int
    """How many entries of the context this rank keeps, those of the segment's own rows included."""
    pages: torch.Tensor
    """int64 [n], no more than the entries need."""
    first_slot: int | None
    """When the pages follow one another: the slot of entry 0."""
    share: ContextShare
    """The positions whose entries they are."""

    def kept(self, row: int) -> int:
        """How many entries row `row` of the segment sees, its own included if it is kept."""
        return self.share.kept(self.start + row + 1)


def places(batch: ForwardBatch) -> list[Place]:
    """The batch's segments, in order."""
    found = []
    for segment in batch.segments:
        kept = batch.share.kept(segment.start + segment.num_rows)
        pages = segment.pages[: -(-kept // batch.page_entries)]
        first = int(pages[0]) if kept else 0
        consecutive = torch.equal(pages, torch.arange(first, first + len(pages)))
        slot = first * batch.page_entries if consecutive else None
        where = segment.first_row, segment.num_rows, segment.start, segment.chunk
        found.append(Place(*where, kept, pages, slot, batch.share))
    return found


def context(pool: torch.Tensor, place: Place) -> torch.Tensor:
    """All entries: [entries, *per_token]. See `span`."""
    return span(pool, place, 0, place.entries)


def span(pool: torch.Tensor, place: Place, first: int, count: int) -> torch.Tensor:
    """The entries first, first + 1, ...: [count, *per_token].

    A view without copying when the pages follow one another and start on cache lines, else a gathered copy.
    """
    if place.first_slot is None or pool.stride(0) * pool.element_size() % ALIGNMENT:
        page_entries = pool.shape[1]
        page = first // page_entries
        # Bytes, which torch copies of any type. Whole pages at a time, which indexing would not do.
        pages = place.pages[page : -(-(first + count) // page_entries)]
        gathered = pool.view(torch.uint8).index_select(0, pages).view(pool.dtype).flatten(0, 1)
        return gathered.narrow(0, first - page * page_entries, count)
    return pool.flatten(0, 1).narrow(0, place.first_slot + first, count)


def slots_of(place: Place, entries: torch.Tensor, page_entries: int) -> torch.Tensor:
    """Where the int64 `entries` of a segment's context lie in every pool."""
    if place.first_slot is not None:
        return entries + place.first_slot
    return place.pages[entries // page_entries] * page_entries + entries % page_entries


def write(pool: torch.Tensor, slots: torch.Tensor, entries: torch.Tensor) -> None:
    """entries: [rows, *per_token], written at their slots."""
    pool.flatten(0, 1).index_copy_(0, slots, entries.to(pool.dtype))


def attend(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, where: Sequence[Place]) -> torch.Tensor:
    """q: [rows, heads, dim]; keys, values: pools [pages, page_tokens, kv heads, dim]. Returns [rows, heads * dim].

    The rows of a prefill chunk are computed together. A decode row is computed alone, over exactly its own context, so
    that its bits do not depend on the batch it came in or on the drafts beside it.
    """
    out: list[torch.Tensor] = []
    threads = torch.get_num_threads()
    try:
        for place in where:
            k = context(keys, place).to(q.dtype)
            v = context(values, place).to(q.dtype)
            if place.chunk:
                out.append(_chunk(q[place.first_row : place.first_row + place.num_rows], k, v, place.start))
            else:
                _rows(q, k.permute(1, 2, 0), v.transpose(0, 1), place, out, threads)
    finally:
        torch.set_num_threads(threads)
    return torch.cat(out).view(len(q), -1)


def _rows(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, place: Place, out: list[torch.Tensor], threads: int
) -> None:
    """Append each row's [kv heads, group, dim]. k: [kv heads, dim, tokens]; v: [kv heads, tokens, dim].

    A batch of rows spends its time here, in the calls rather than in the sums: every operation counts.
    """
    kv_heads, dim = k.shape[:2]
    for i in range(place.num_rows):
        length = place.start + i + 1
        # By the row's own length: its neighbours must not choose how it is computed.
        torch.set_num_threads(1 if kv_heads * dim * length < FORK_ELEMENTS else threads)
        # The product makes a copy, hence an aligned one whatever the row's place in q.
        row = q[place.first_row + i].view(kv_heads, -1, dim) * dim**-0.5
        weights = torch.bmm(row, k.narrow(2, 0, length)).softmax(-1)
        out.append(torch.bmm(weights, v.narrow(1, 0, length)))


def _chunk(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, start: int) -> torch.Tensor:
    """q: [rows, heads, dim] at positions start, start + 1, ...; k, v: [start + rows, kv heads, dim]."""
    mask = None
    if start:
        mask = torch.ones(len(q), len(k), dtype=torch.bool).tril(start)
    out = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None],
        k.transpose(0, 1)[None],
        v.transpose(0, 1)[None],
        attn_mask=mask,
        is_causal=not start,
        enable_gqa=True,
    )
    return out[0].transpose(0, 1)
