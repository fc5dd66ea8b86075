"""What every rank does in one step: plain integers, the same on all of them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Rows:
    """Consecutive token rows of one sequence, `tokens[i]` at position `start + i`."""

    sequence: int
    start: int
    tokens: tuple[int, ...]
    pages: tuple[int, ...]
    """Page table that covers the last row."""
    logits: int
    """How many of the last rows need logits."""
    chunk: bool
    """A prefill chunk (computed in a call of its own) or decode rows (computed with those of other sequences)."""


@dataclass(frozen=True)
class StepPlan:
    """One turn of the engine."""

    step: int
    rows: tuple[Rows, ...]

    def encode(self) -> bytes:
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @staticmethod
    def decode(data: bytes) -> StepPlan:
        plain = json.loads(data)
        for row in plain["rows"]:
            row.update(tokens=tuple(row["tokens"]), pages=tuple(row["pages"]))
        return StepPlan(plain["step"], tuple(Rows(**row) for row in plain["rows"]))
