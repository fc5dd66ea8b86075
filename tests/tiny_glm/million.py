"""Tiny GLM over a context of 1,048,576 tokens that nobody computed: pages filled by hand, on one rank and on four.

The pages hold random entries of the size of real ones. Among the indexer's keys stand *needles*: keys made from the
very queries of the last row, such that they outscore all others. A needle's key k solves q_h . k = 1 for every index
head h whose weight is positive and -1 for the others, which the ReLU silences; so it scores the sum of the positive
weights, times its length, and no key of that length can score more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from glmserve.engine.kv import PageMemory
from glmserve.engine.plan import Rows, StepPlan
from glmserve.engine.runner import RowsResult, Runner
from glmserve.models.entries import Entry
from glmserve.models.glm_moe_dsa.call import dense_rows
from glmserve.models.glm_moe_dsa.indexer import Indexer
from glmserve.models.glm_moe_dsa.mla import LatentAttention
from glmserve.models.glm_moe_dsa.model import GlmMoeDsaModel
from glmserve_model_tiny_glm import CHECKPOINT

from ..core.models.glm_ranks import Spread

TOKENS = 1_048_576
LAST = TOKENS - 1
PAGE_TOKENS = 64
PAGES = TOKENS // PAGE_TOKENS
SPARE_PAGES = 8
"""For another sequence beside the long one."""
RANKS = 4
TOPK = 256
FULL = (0, 1, 3)
"""Layers that select; layers 2 and 4 attend to what 1 and 3 selected."""
LAYERS = 5
SELECTS = {0: 0, 1: 1, 2: 1, 3: 3, 4: 3}
"""layer -> the layer whose selection it attends to"""
NEEDLES = {0: TOPK, 1: TOPK, 3: 200}
"""How many there are: with fewer than TOPK, ordinary keys fill the selection."""
STRENGTH = 4.0
"""A needle's score, over the best of all others."""
TOKEN = 5
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Query:
    """What an indexer asked for one row."""

    heads: Floats
    """[index heads, index dim]"""
    weights: Floats
    """[index heads]"""


class Side:
    """Some ranks with a page memory each, all of one sequence."""

    def __init__(self, ranks: int, kv_dtype: str) -> None:
        self.spread = Spread(CHECKPOINT, ranks, ranks, kv_dtype)
        self.memories = [
            PageMemory(rank.model.info, PAGES + SPARE_PAGES, PAGE_TOKENS, rank.parallel.share)
            for rank in self.spread.ranks
        ]

    @property
    def models(self) -> list[GlmMoeDsaModel]:
        return [rank.model for rank in self.spread.ranks]

    def run(self, plans: Sequence[StepPlan]) -> list[list[RowsResult]]:
        """The results of each plan on rank 0."""
        runners = [Runner(model, memory) for model, memory in zip(self.models, self.memories, strict=True)]
        first, *_ = self.spread.each(lambda rank: [runners[rank.parallel.rank].execute(plan) for plan in plans])
        return first


class Million:
    """The same context on one rank and dealt out over four."""

    def __init__(self, kv_dtype: str) -> None:
        self.one, self.four = Side(1, kv_dtype), Side(RANKS, kv_dtype)
        order = torch.randperm(PAGES + SPARE_PAGES, generator=torch.Generator().manual_seed(8)).tolist()
        self.table: list[int] = order[:PAGES]
        """Of the long sequence: no page of it follows another but by chance."""
        self.spare: list[int] = order[PAGES:]
        self.model = self.one.models[0]
        self.pools = self.one.memories[0].tensors
        self._fill()
        self.needles = {layer: needle_positions(layer, count) for layer, count in NEEDLES.items()}
        for layer in FULL:
            self._plant(layer)
        self._deal()

    def row(self, position: int, tokens: Sequence[int] = (TOKEN,), chunk: bool = False) -> Rows:
        """Decode rows of the long sequence, or a chunk of its prompt, from `position` on, all with logits."""
        pages = tuple(self.table[: -(-(position + len(tokens)) // PAGE_TOKENS)])
        return Rows(1, position, tuple(tokens), 0, pages, len(tokens), chunk)

    def entry(self, layer: int) -> Entry:
        """Of the latents."""
        return self.model.layers[layer].attention.entry

    def keys(self, layer: int) -> Entry:
        indexer = self.model.layers[layer].attention.indexer
        assert indexer is not None
        return indexer.entry

    def write(self, entry: Entry, position: int, values: torch.Tensor) -> None:
        """values: [width], as the entry of a position, on the one rank and on that of the four which keeps it."""
        for side in (self.one, self.four):
            memory = side.memories[position % len(side.memories)]
            share = memory.share.count
            page, at = self.table[position // PAGE_TOKENS], position % PAGE_TOKENS // share
            entry.write(memory.tensors, torch.tensor([page * (PAGE_TOKENS // share) + at]), values[None])

    def read(self, entry: Entry, positions: slice = slice(None)) -> Floats:
        """[positions, width], in order, decoded from the pages of the one rank without the engine's help."""
        parts = []
        pages = torch.tensor(self.table)
        for part in entry.parts:
            stored = self.pools[part.name].view(torch.uint8)[pages].view(self.pools[part.name].dtype)
            values = stored.flatten(0, 1)[positions].double()
            if stored.dtype == torch.float8_e4m3fn:  # at most 128 wide: one scale
                values = values * self.pools[f"{part.name}_scale"][pages].flatten(0, 1)[positions].double()
            parts.append(values)
        return torch.cat(parts, -1).numpy()

    def _fill(self) -> None:
        generator = torch.Generator().manual_seed(9)
        for layer in range(LAYERS):
            for entry in (self.entry(layer), self.keys(layer)) if layer in FULL else (self.entry(layer),):
                width = sum(part.width for part in entry.parts)
                for slots in torch.arange((PAGES + SPARE_PAGES) * PAGE_TOKENS).split(1 << 16):
                    entry.write(self.pools, slots, torch.randn(len(slots), width, generator=generator))

    def _plant(self, layer: int) -> None:
        """The layers before have theirs, so the last row asks here what it will ask from now on."""
        with recorded(self.one) as (_, queries):
            self.one.run([StepPlan(1, (self.row(LAST),))])
        query = queries[layer, LAST]
        positive = query.weights > 0
        assert positive.any()
        key = np.linalg.pinv(query.heads) @ np.where(positive, 1.0, -1.0)
        length = STRENGTH * scores(query, self.read(self.keys(layer))).max() / query.weights[positive].sum()
        for i, position in enumerate(self.needles[layer]):
            grown = length * (1 + i / TOPK)  # of which no two score the same
            page, at = self.table[position // PAGE_TOKENS], position % PAGE_TOKENS
            slot = torch.tensor([page * PAGE_TOKENS + at])
            self.keys(layer).write(self.pools, slot, torch.from_numpy(grown * key).float()[None])

    def _deal(self) -> None:
        for memory in self.four.memories:
            share = memory.share
            for name, pool in memory.tensors.items():
                pool.view(torch.uint8).copy_(self.pools[name].view(torch.uint8)[:, share.index :: share.count])


def needle_positions(layer: int, count: int) -> list[int]:
    """Ascending: both ends, the edges of 2^16, 2^19 and pages, and random ones on all ranks alike."""
    edges = [0, 1, 2, 3, 62, 63, 64, 65]
    for power in (16, 17, 18, 19):
        edges += range((1 << power) - 4, (1 << power) + 4)
    edges += range(LAST - 66, LAST - 58)  # the end of the last page but one, and the start of the last
    edges += range(LAST - 4, LAST)
    choose = np.random.default_rng(layer)
    found = set(edges)
    each = [len([p for p in found if p % RANKS == rank]) for rank in range(RANKS)]
    for rank in range(RANKS):
        while each[rank] < count // RANKS:
            position = int(choose.integers(0, TOKENS // RANKS - 40)) * RANKS + rank
            each[rank] += position not in found
            found.add(position)
    assert len(found) == count
    return sorted(found)


def scores(query: Query, keys: Floats) -> Floats:
    """[tokens], of keys [tokens, index dim]: the formula, in float64. The scale of the dot products is in the weights,
    as the engine has it: relu(x s) = relu(x) s."""
    total: Floats = np.maximum(keys @ query.heads.T, 0) @ query.weights
    return total


def best(values: Floats) -> list[int]:
    """The positions of the TOPK highest, ascending; of equal ones the lower position."""
    order = np.lexsort((np.arange(len(values)), -values))
    return sorted(order[:TOPK].tolist())


Chosen = dict[tuple[int, int, int], list[int]]
"""(rank, layer, position of the row) -> the positions it attends to"""


@contextmanager
def recorded(side: Side) -> Iterator[tuple[Chosen, dict[tuple[int, int], Query]]]:
    """What rows past the selection attend to in the calls made within, and of one rank what its indexers ask, by layer
    and position of the row."""
    chosen: Chosen = {}
    queries: dict[tuple[int, int], Query] = {}
    where = {
        id(layer.attention): (rank, i) for rank, model in enumerate(side.models) for i, layer in enumerate(model.layers)
    }
    asking = {id(layer.attention.indexer): i for i, layer in enumerate(side.models[0].layers)}
    attend, search = LatentAttention.__call__, Indexer._best

    def attending(self: Any, hidden: torch.Tensor, call: Any, selection: Any) -> Any:
        out, used = attend(self, hidden, call, selection)
        rank, layer = where[id(self)]
        for place, positions in zip(call.where, used, strict=True):
            dense = dense_rows(place, TOPK)
            for i in range(dense, place.num_rows):
                chosen[rank, layer, place.start + i] = positions[i - dense].tolist()
        return out, used

    def searching(self: Any, heads: torch.Tensor, weights: torch.Tensor, place: Any, position: int, call: Any) -> Any:
        if id(self) in asking:
            for i in range(len(heads)):
                queries[asking[id(self)], position + i] = Query(heads[i].double().numpy(), weights[i].double().numpy())
        return search(self, heads, weights, place, position, call)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LatentAttention, "__call__", attending)
        patch.setattr(Indexer, "_best", searching)
        yield chosen, queries
