"""What every rank does in one step: plain integers, the same on all of them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Rows:
    """Consecutive token rows of one sequence, `tokens[i]` at position `start + i`."""

    sequence: int
    start: int
    tokens: tuple[int, ...]
    first_page: int
    """Index of pages[0] in the sequence's page table; 0 begins a new one."""
    pages: tuple[int, ...]
    """What its page table gained since the sequence's last rows: a step costs the same however long the context is."""
    logits: int
    """How many of the last rows need logits."""
    chunk: bool
    """A prefill chunk (computed in a call of its own) or decode rows (computed with those of other sequences)."""


@dataclass(frozen=True)
class StepPlan:
    """One turn of the engine."""

    step: int
    rows: tuple[Rows, ...]
    ended: tuple[int, ...] = ()
    """Sequences whose pages were given back since the last step."""

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @staticmethod
    def of(plain: dict[str, Any]) -> StepPlan:
        """The inverse of `plain`, after JSON."""
        rows = [Rows(**{**row, "tokens": tuple(row["tokens"]), "pages": tuple(row["pages"])}) for row in plain["rows"]]
        return StepPlan(plain["step"], tuple(rows), tuple(plain["ended"]))
