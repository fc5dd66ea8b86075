"""What all layers of one call share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from glmserve.api import ContextShare, ForwardBatch

from ..attention import Place, places
from ..entries import Entry, Pools
from ..rope import Rotary


@dataclass(frozen=True)
class Call:
    """Where the rows are, and their rotations."""

    where: Sequence[Place]
    slots: torch.Tensor
    """int64 [stored rows]"""
    stored: torch.Tensor | None
    """int64 [stored rows]: the rows whose entries this rank keeps; None when it keeps all."""
    share: ContextShare
    """The positions whose entries this rank keeps: a property of the call, for the same ranks may keep the pages of
    one model dealt out and those of a drafter whole."""
    cosine: torch.Tensor
    """float32 [rows, 1, rope dim]"""
    sine: torch.Tensor
    pools: Pools

    @property
    def chunk(self) -> bool:
        """A prefill chunk, whose rows are always computed together; else decode rows, each computed alone."""
        return self.where[0].chunk

    @property
    def dealt(self) -> bool:
        """Each rank keeps only some positions."""
        return self.share.count > 1

    def write(self, entry: Entry, values: torch.Tensor) -> None:
        """values: [rows, width], of which this rank writes those that it keeps."""
        entry.write(self.pools, self.slots, values if self.stored is None else values[self.stored])


def new_call(batch: ForwardBatch, rotary: Rotary, pools: Pools) -> Call:
    cosine, sine = rotary.tables(batch.positions)
    return Call(places(batch), batch.slots, batch.stored, batch.share, cosine, sine, pools)


def dense_rows(place: Place, topk: int) -> int:
    """How many rows of a segment, its first ones, see no more tokens than may be selected, and so attend to all."""
    return min(max(topk - place.start, 0), place.num_rows)
