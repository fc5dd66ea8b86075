"""Multi-head latent attention, in its absorbed form, over a latent cache and a selection of tokens.

A token's keys and values of all heads are linear images of one small latent c: k_h = Wk_h c and v_h = Wv_h c, where
kv_b_proj stacks Wk_h and Wv_h by head. Hence q_h . k_h = (Wk_h^T q_h) . c, and sum_t p_t v_t = Wv_h (sum_t p_t c_t):
attention runs on the latents, and nothing of a token is stored but its latent and one rotated key for all heads. The
scale stays that of the expanded product, (nope dim + rope dim)^-1/2. Formulas: DeepSeek-V2's report, section 2.1.

The absorbed form serves prefill too: one form has one rounding, and keeps the context at its latent's width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from glmserve.api import Linear

from ..attention import Place, slots_of
from ..rope import rotate_pairs
from .call import Call, dense_rows
from .dealt import SCORES, DealtAttention
from .indexer import Indexer, Selection
from .layout import at, attention_linears, latent_entry
from .source import Source


class LatentAttention:
    """This rank's heads of the attention of one layer, with its indexer when it is a full one."""

    def __init__(self, source: Source, index: int, full: bool) -> None:
        self._config = config = source.config
        specs = attention_linears(config, index, full)
        own = source.heads[source.parallel.rank]
        self._heads = len(own)
        self._down = source.linear(specs["down"])
        self._query = source.linear(specs["q"], rows=scaled(own, config.nope_dim + config.rope_dim))
        self._out = source.linear(specs["o"], columns=scaled(own, config.value_dim))
        up = weight_of(source.linear(specs["kv"], rows=scaled(own, config.nope_dim + config.value_dim)))
        up = up.view(len(own), config.nope_dim + config.value_dim, config.kv_rank)
        self._absorb_key = up[:, : config.nope_dim].contiguous()
        """[heads, nope dim, kv rank]"""
        self._expand_value = up[:, config.nope_dim :].transpose(1, 2).contiguous()
        """[heads, kv rank, value dim]"""
        prefix = f"{at(index)}.self_attn"
        self._query_norm = source.vector(f"{prefix}.q_a_layernorm.weight")
        self._latent_norm = source.vector(f"{prefix}.kv_a_layernorm.weight")
        self.entry = latent_entry(config, index, source.kv_dtype)
        self._dealt = DealtAttention(source, self.entry)
        self.indexer = Indexer(source, index, specs) if full else None
        linears: tuple[Linear, ...] = (self._down, self._query, self._out)
        self.linears = linears if self.indexer is None else linears + self.indexer.linears
        self.nbytes = sum(linear.nbytes for linear in self.linears) + up.nbytes

    def __call__(self, hidden: torch.Tensor, call: Call, selection: Selection | None) -> tuple[torch.Tensor, Selection]:
        """hidden: [rows, hidden], normalised. Returns ([rows, hidden], the part that this rank's heads have in the sum;
        the selection that was used).

        `selection` is that of the nearest full layer before this one; a full layer makes its own instead.
        """
        config = self._config
        widths = [config.q_rank, config.kv_rank, config.rope_dim]
        query_latent, latent, key = torch.split(self._down(hidden), widths, -1)
        query_latent = F.rms_norm(query_latent, self._query_norm.shape, self._query_norm, config.latent_eps)
        latent = F.rms_norm(latent, self._latent_norm.shape, self._latent_norm, config.latent_eps)
        key = rotate_pairs(key[:, None], call.cosine, call.sine)[:, 0]
        call.write(self.entry, torch.cat((latent, key), -1))
        if self.indexer is not None:
            selection = self.indexer.select(hidden, query_latent, call)
        if selection is None:
            raise ValueError("a layer without an indexer was called before any selection was made")
        queries = self._query(query_latent).view(len(hidden), self._heads, -1)
        queries = torch.cat(
            (
                queries[..., : config.nope_dim],
                rotate_pairs(queries[..., config.nope_dim :], call.cosine, call.sine),
            ),
            -1,
        )
        heads = self._over_ranks(queries, call, selection) if call.dealt else self._here(queries, call, selection)
        return self._out(heads.view(len(hidden), -1)), selection

    def _over_ranks(self, queries: torch.Tensor, call: Call, selection: Selection) -> torch.Tensor:
        """[rows, heads, value dim], from entries that several ranks keep between them."""
        if call.chunk:
            return self._expanded(self._dealt(self._absorbed(queries), call, selection)).contiguous()
        query = torch.cat([self._absorbed(row) for row in torch.split(queries, 1)])
        latents = self._dealt(query, call, selection)
        # Copies, hence aligned ones whatever the row's place in the call.
        return torch.cat([self._expanded(row.clone()) for row in torch.split(latents, 1)])

    def _here(self, queries: torch.Tensor, call: Call, selection: Selection) -> torch.Tensor:
        """[rows, heads, value dim], from entries that are all on this rank."""
        heads = [
            self._chunk(queries, place, chosen, call) if place.chunk else self._rows(queries, place, chosen, call)
            for place, chosen in zip(call.where, selection, strict=True)
        ]
        return torch.cat(heads)

    def _rows(self, queries: torch.Tensor, place: Place, chosen: torch.Tensor | None, call: Call) -> torch.Tensor:
        """Each row alone, over exactly its own tokens. Returns [rows, heads, value dim]."""
        dense = dense_rows(place, self._config.index_topk)
        context = self.entry.span(call.pools, place, 0, place.start + dense) if dense else None
        out = []
        for i in range(place.num_rows):
            query = self._absorbed(queries[place.first_row + i][None])
            if context is not None and i < dense:
                entries = context.narrow(0, 0, place.start + i + 1)
            elif chosen is not None:
                entries = self._at(place, chosen[i - dense], call)
            out.append(self._expanded(self._attend(query, entries[None])))
        return torch.cat(out)

    def _chunk(self, queries: torch.Tensor, place: Place, chosen: torch.Tensor | None, call: Call) -> torch.Tensor:
        """The same for the rows of a prefill chunk, many at a time."""
        config = self._config
        query = self._absorbed(queries[place.first_row : place.first_row + place.num_rows])
        dense = dense_rows(place, config.index_topk)
        out = []
        if dense:
            context = self.entry.span(call.pools, place, 0, place.start + dense)
            step = max(1, SCORES // (self._heads * len(context)))
            for i in range(0, dense, step):
                group = query[i : min(i + step, dense)]
                out.append(self._causal(group, context[: place.start + i + len(group)]))
        if chosen is not None:
            step = max(1, SCORES // (config.index_topk * config.latent_width))
            for i in range(0, len(chosen), step):
                group = chosen[i : i + step]
                entries = self._at(place, group, call)
                out.append(self._attend(query[dense + i : dense + i + len(group)], entries))
        return self._expanded(torch.cat(out))

    def _at(self, place: Place, positions: torch.Tensor, call: Call) -> torch.Tensor:
        pool = call.pools[self.entry.parts[0].name]
        return self.entry.at(call.pools, slots_of(place, positions, pool.shape[1]))

    def _absorbed(self, queries: torch.Tensor) -> torch.Tensor:
        """[rows, heads, nope + rope] to [rows, heads, kv rank + rope], scaled.

        Scaling makes a copy, hence an aligned one whatever the row's place in the call.
        """
        nope = self._config.nope_dim
        scaled = queries * queries.shape[-1] ** -0.5
        absorbed = torch.bmm(scaled[..., :nope].transpose(0, 1), self._absorb_key).transpose(0, 1)
        return torch.cat((absorbed, scaled[..., nope:]), -1)

    def _attend(self, query: torch.Tensor, entries: torch.Tensor) -> torch.Tensor:
        """query: [rows, heads, width]; entries: [rows, tokens, width], each row's own. [rows, heads, kv rank]."""
        weights = torch.bmm(query, entries.transpose(1, 2)).softmax(-1)
        return torch.bmm(weights, entries[..., : self._config.kv_rank])

    def _causal(self, query: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        """query: [rows, heads, width] of the last rows of context: [tokens, width]. [rows, heads, kv rank]."""
        rows, heads, width = query.shape
        scores = (query.view(rows * heads, width) @ context.T).view(rows, heads, len(context))
        future = torch.ones(rows, len(context), dtype=torch.bool).triu(len(context) - rows + 1)
        weights = scores.masked_fill_(future[:, None], -torch.inf).softmax(-1)
        latent = weights.view(rows * heads, -1) @ context[:, : self._config.kv_rank]
        return latent.view(rows, heads, -1)

    def _expanded(self, latents: torch.Tensor) -> torch.Tensor:
        """[rows, heads, kv rank] to [rows, heads, value dim]"""
        return torch.bmm(latents.transpose(0, 1), self._expand_value).transpose(0, 1)


def scaled(heads: range, dim: int) -> range:
    """The features of consecutive heads of `dim` features each."""
    return range(heads.start * dim, heads.stop * dim)


def weight_of(linear: Linear) -> torch.Tensor:
    """float32 [out, in]: a layer's weight, from whatever stores it, as its products with the unit vectors."""
    return linear(torch.eye(linear.in_features)).T.contiguous()
