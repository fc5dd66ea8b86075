"""What all layers of one call share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from glmserve.api import ForwardBatch

from ..attention import Place, places
from ..entries import Pools
from ..rope import Rotary


@dataclass(frozen=True)
class Call:
    """Where the rows are, and their rotations."""

    where: Sequence[Place]
    slots: torch.Tensor
    """int64 [rows]"""
    cosine: torch.Tensor
    """float32 [rows, 1, rope dim]"""
    sine: torch.Tensor
    pools: Pools

    @property
    def chunk(self) -> bool:
        """A prefill chunk, whose rows are always computed together; else decode rows, each computed alone."""
        return self.where[0].chunk


def new_call(batch: ForwardBatch, rotary: Rotary, pools: Pools) -> Call:
    cosine, sine = rotary.tables(batch.positions)
    return Call(places(batch), batch.slots, cosine, sine, pools)


def dense_rows(place: Place, topk: int) -> int:
    """How many rows of a segment, its first ones, see no more tokens than may be selected, and so attend to all."""
    return min(max(topk - place.start, 0), place.num_rows)
