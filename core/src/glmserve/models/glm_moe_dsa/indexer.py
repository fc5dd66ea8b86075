"""The lightning indexer of DeepSeek sparse attention: which tokens a row attends to.

A row's score of token t is s_t = sum over index heads h of w_h * relu(q_h . k_t), and the row attends to the
`index_topk` tokens of the highest scores among those up to itself. Keys are small and shared by all index heads; every
row writes its key, whether or not anything is selected yet. Formulas: DeepSeek-V3.2-Exp's report, section 2.1; GLM
differs in its rotation, which takes interleaved pairs here as in attention, on the *first* elements of a head.

Where several ranks keep a context between them, each scores the keys that it keeps and sends its best ones to the
others; all choose from these, in an order of which the sets come out as on one rank.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from glmserve.api import ContextShare, Linear, LinearSpec

from ..attention import Place
from ..rope import rotate_pairs
from .call import Call, dense_rows
from .layout import at, index_entry
from .merge import merge_candidates, packed_candidates
from .source import Source
from .topk import RunningTopK

KEY_NORM_EPS = 1e-6
"""The same in every release, whatever rms_norm_eps is."""
SPAN_KEYS = 4096
"""Keys that are scored at once: memory is bounded by it and by index_topk, not by the context."""
SCORES = 1 << 22
"""Scores by index head that a prefill chunk holds at once (16 MiB)."""

Selection = Sequence[torch.Tensor | None]
"""For each segment int64 [rows, index_topk]: the positions, ascending, to which its last rows attend. The rows before
those see no more tokens than index_topk, and attend to all of them; None when no row is left."""


class Indexer:
    """A full layer's own indexer, whole on every rank."""

    def __init__(self, source: Source, index: int, specs: dict[str, LinearSpec]) -> None:
        self._config, self._parallel = source.config, source.parallel
        self.entry = index_entry(source.config, index, source.kv_dtype)
        self._query: Linear = source.linear(specs["index_q"])
        self._key: Linear = source.linear(specs["index_k"])
        self.linears = (self._query, self._key)
        norm = f"{at(index)}.self_attn.indexer.k_norm"
        self._norm = source.vector(f"{norm}.weight")
        self._norm_bias = source.vector(f"{norm}.bias")

    def select(self, hidden: torch.Tensor, query_latent: torch.Tensor, call: Call) -> Selection:
        """Write the rows' keys, then select.

        hidden: [rows, hidden], normalised, what attention gets too; query_latent: [rows, q rank], after its norm.
        """
        config = self._config
        weights = self.write(hidden, call)
        if all(dense_rows(place, config.index_topk) == place.num_rows for place in call.where):
            return [None] * len(call.where)
        queries = self._query(query_latent).view(len(hidden), config.index_heads, config.index_dim)
        queries = self._rotated(queries, call)
        found = [self._segment(queries, weights, place, call) for place in call.where]
        if not call.dealt:
            return [torch.cat([one.entries for one in best]) if best else None for best in found]
        return self._merged(found, call.share)

    def _merged(self, found: list[list[RunningTopK]], share: ContextShare) -> Selection:
        """The selection of all ranks that keep the context between them, from what this one found in its part.

        One exchange for the rows of all segments: the candidates of each row that selects, which all ranks count alike.
        """
        topk = self._config.index_topk
        own = torch.cat(
            [
                packed_candidates(one.scores, one.entries * share.count + share.index, topk)
                for best in found
                for one in best
            ]
        )
        ranks = self._parallel.context_ranks
        merged = merge_candidates(self._parallel.group.gather("candidates", own, [own.shape] * len(ranks), ranks))
        rows = iter(torch.split(merged, [sum(len(one.scores) for one in best) for best in found]))
        return [chosen if best else None for best, chosen in zip(found, rows, strict=True)]

    def write(self, hidden: torch.Tensor, call: Call) -> torch.Tensor:
        """Write the rows' keys and return the weights of their index heads, [rows, index heads], scales included."""
        config = self._config
        keys, weights = torch.split(self._key(hidden), [config.index_dim, config.index_heads], -1)
        keys = F.layer_norm(keys, self._norm.shape, self._norm, self._norm_bias, KEY_NORM_EPS)
        call.write(self.entry, self._rotated(keys[:, None], call)[:, 0])
        # relu(x * s) = relu(x) * s for a positive scale, so it is applied to the few weights.
        scaled: torch.Tensor = weights * (config.index_heads * config.index_dim) ** -0.5
        return scaled

    def _rotated(self, x: torch.Tensor, call: Call) -> torch.Tensor:
        """x: [rows, heads, index dim]"""
        dim = self._config.rope_dim
        return torch.cat((rotate_pairs(x[..., :dim], call.cosine, call.sine), x[..., dim:]), -1)

    def _segment(self, queries: torch.Tensor, weights: torch.Tensor, place: Place, call: Call) -> list[RunningTopK]:
        """Of the rows that select, some at a time."""
        config = self._config
        dense = dense_rows(place, config.index_topk)
        step = max(1, SCORES // (config.index_heads * SPAN_KEYS)) if place.chunk else 1
        found = []
        for i in range(dense, place.num_rows, step):
            count = min(step, place.num_rows - i)
            rows = slice(place.first_row + i, place.first_row + i + count)
            # Copies, hence aligned ones whatever the rows' place in the call.
            found.append(self._best(queries[rows].clone(), weights[rows].clone(), place, place.start + i, call))
        return found

    def _best(
        self, queries: torch.Tensor, weights: torch.Tensor, place: Place, position: int, call: Call
    ) -> RunningTopK:
        """Of rows at consecutive positions from `position` on, among the entries that this rank keeps."""
        rows, heads, dim = queries.shape
        running = RunningTopK(rows, self._config.index_topk)
        end = place.share.kept(position + rows)
        for first in range(0, end, SPAN_KEYS):
            keys = self.entry.span(call.pools, place, first, min(SPAN_KEYS, end - first))
            scores = (queries.view(rows * heads, dim) @ keys.T).view(rows, heads, len(keys)).relu_()
            total = torch.bmm(weights[:, None], scores)[:, 0]
            if rows > 1:
                positions = torch.arange(first, first + len(keys)) * place.share.count + place.share.index
                future = positions > position + torch.arange(rows)[:, None]
                total = total.masked_fill(future, -torch.inf)
            running.add(total, first)
        return running
