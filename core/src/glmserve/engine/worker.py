"""What every rank does: run steps on its part of the model, and a drafter that computes with the model's layers.

Rank 0 does each thing as it decides it, and writes it down as a command; the other ranks do the commands in order.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import psutil

from glmserve.api import ALONE, Draft, Drafter, Group, Model

from .kv import PageMemory
from .plan import StepPlan
from .runner import RowsResult, Runner

LEAVE = "leave"
"""The command after which a rank has nothing more to do."""


class Worker:
    """One rank's model, pages and drafter. Used by one thread."""

    def __init__(self, model: Model, memory: PageMemory, drafter: Drafter | None, group: Group = ALONE) -> None:
        """`group` is the one that the model was loaded for; `drafter` is None on ranks that do not run it."""
        if drafter is not None:
            drafter.attach(model)
        self.model = model
        self.memory = memory
        self.drafter = drafter
        self.group = group
        self.steps = 0
        self._process = psutil.Process()
        self._runner = Runner(model, memory, drafter.taps if drafter is not None else ())
        self._results: dict[int, tuple[int, RowsResult]] = {}
        """Of the last step, by sequence: the position of its first row, and its result."""
        self._digest = hashlib.blake2b(digest_size=8)

    def report(self) -> dict[str, Any]:
        """What the ranks compare after each message, and what rank 0 shows of them."""
        return {
            "digest": self.digest,
            "exchanges": self.group.exchanges,
            "steps": self.steps,
            "memory_bytes": self._process.memory_info().rss,
        }

    def execute(self, plan: StepPlan) -> list[RowsResult]:
        """Results in the order of `plan.rows`."""
        results = self._runner.execute(plan)
        self._results = {rows.sequence: (rows.start, one) for rows, one in zip(plan.rows, results, strict=True)}
        self.steps += 1
        return results

    def observe(self, sequence: int, start: int, tokens: Sequence[int]) -> None:
        """Tokens from position `start` on are final. The drafter gets the last step's taps of them, or none when that
        step did not compute them: a prefix cache restored them."""
        if self.drafter is None:
            return
        first, result = self._results.get(sequence, (-1, None))
        taps = {}
        if result is not None and first == start:
            taps = {layer: tensor[: len(tokens)] for layer, tensor in result.taps.items()}
        self.drafter.observe(sequence, start, tokens, taps)

    def propose(self, sequence: int, pending: int, depth: int) -> Draft:
        return Draft() if self.drafter is None else self.drafter.propose(sequence, pending, depth)

    def forget(self, sequence: int) -> None:
        self._results.pop(sequence, None)
        if self.drafter is not None:
            self.drafter.forget(sequence)

    @property
    def digest(self) -> str:
        """Of all that this rank was told and of what came of it: the same on every rank after the same commands."""
        return self._digest.hexdigest()

    def perform(self, message: bytes) -> Any:
        """Do the commands of a message in order, and return what the last one gives; LEAVE itself for that command."""
        self._digest.update(message)
        result: Any = None
        for name, *arguments in json.loads(message):
            result = self._perform(name, arguments)
        return result

    def _perform(self, name: str, arguments: list[Any]) -> Any:
        if name == "execute":
            results = self.execute(StepPlan.of(arguments[0]))
            for result in results:  # of the arithmetic that all ranks repeat, its bits
                self._digest.update(result.last_hidden.numpy().tobytes())
            return results
        if name == "propose":
            draft = self.propose(*arguments)
            self._digest.update(encode(draft.tokens))
            return draft
        if name == "observe":
            self.observe(*arguments)
        elif name == "forget":
            self.forget(*arguments)
        elif name == LEAVE:
            return LEAVE
        else:
            raise ValueError(f"rank 0 sent the command {name!r}, which there is not")
        return None


def encode(plain: Any) -> bytes:
    return json.dumps(plain, separators=(",", ":")).encode()
