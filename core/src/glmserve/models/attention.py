"""Grouped-query attention over paged keys and values."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from glmserve.api import ForwardBatch, Segment


def context(pool: torch.Tensor, segment: Segment, page_tokens: int) -> torch.Tensor:
    """The segment's entries at positions [0, start + num_rows): [tokens, *per_token].

    A view without copying when the pages follow one another, else a gathered copy of the same layout.
    """
    tokens = segment.start + segment.num_rows
    pages = segment.pages[: -(-tokens // page_tokens)]
    first, count = int(pages[0]), len(pages)
    consecutive = int(pages[-1]) - first == count - 1 and bool((pages[1:] - pages[:-1] == 1).all())
    rows = pool[first : first + count] if consecutive else pool[pages]
    return rows.flatten(0, 1)[:tokens]


def write(pool: torch.Tensor, slots: torch.Tensor, entries: torch.Tensor) -> None:
    """entries: [rows, *per_token], written at their slots."""
    pool.flatten(0, 1)[slots] = entries.to(pool.dtype)


def attend(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
    """q: [rows, heads, dim]; keys, values: pools [pages, page_tokens, kv heads, dim]. Returns [rows, heads * dim].

    The rows of a prefill chunk are computed together. A decode row is computed alone, over exactly its own context, so
    that its bits do not depend on the batch it came in or on the drafts beside it.
    """
    out = torch.empty_like(q)
    for segment in batch.segments:
        rows = slice(segment.first_row, segment.first_row + segment.num_rows)
        k = context(keys, segment, batch.page_tokens).to(q.dtype)
        v = context(values, segment, batch.page_tokens).to(q.dtype)
        if segment.chunk:
            out[rows] = _chunk(q[rows], k, v, segment.start)
        else:
            for i in range(segment.num_rows):
                length = segment.start + i + 1
                out[segment.first_row + i] = _row(q[segment.first_row + i], k[:length], v[:length])
    return out.flatten(1)


def _row(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """q: [heads, dim]; k, v: [tokens, kv heads, dim]."""
    kv_heads, dim = k.shape[1:]
    grouped = q.view(kv_heads, -1, dim) * dim**-0.5
    weights = torch.bmm(grouped, k.permute(1, 2, 0)).softmax(-1)
    return torch.bmm(weights, v.transpose(0, 1)).view(q.shape)


def _chunk(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, start: int) -> torch.Tensor:
    """q: [rows, heads, dim] at positions start, start + 1, ...; k, v: [start + rows, kv heads, dim]."""
    groups = q.shape[1] // k.shape[1]
    mask = None
    if start:
        mask = torch.ones(len(q), len(k), dtype=torch.bool).tril(start)
    out = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None],
        k.repeat_interleave(groups, 1).transpose(0, 1)[None],
        v.repeat_interleave(groups, 1).transpose(0, 1)[None],
        attn_mask=mask,
        is_causal=not start,
    )
    return out[0].transpose(0, 1)
