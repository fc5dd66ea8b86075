"""A reply's text to deltas: thinking first, then content and calls. A state machine of state machines.

It reads generated text only, never the prompt, so an earlier turn cannot change how this one is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .deltas import Content, Delta, Reasoning, joined
from .reasoning import ReasoningParser, Start
from .tool_calls import ToolCallParser


class ReplyParser:
    """The deltas of all `push` and of `finish`, joined, depend on the whole text alone and not on how it was cut."""

    def __init__(self, start: Start, tools: Mapping[str, Mapping[str, Any]] | None, parallel: bool = True) -> None:
        """`tools`: name -> JSON Schema of the arguments; None or empty: no calls, and text that looks like one stays
        as it is. Not `parallel`: one call at most."""
        self._calls = ToolCallParser(tools, parallel) if tools else None
        self._reasoning = ReasoningParser(start, calls=bool(tools))

    def called(self, cut: bool) -> bool:
        """The reply calls tools, and every call is whole. `cut`: it was ended by its length, so more may have come."""
        return self._calls is not None and self._calls.complete and (self._calls.over or not cut)

    def push(self, text: str) -> list[Delta]:
        """What is now certain."""
        return joined(self._deltas(*self._reasoning.push(text)))

    def finish(self) -> list[Delta]:
        """What was held back, at the end of the text."""
        deltas = self._deltas(*self._reasoning.finish())
        return joined(deltas if self._calls is None else [*deltas, *self._calls.finish()])

    def _deltas(self, thought: str, said: str) -> list[Delta]:
        return [Reasoning(thought), *([Content(said)] if self._calls is None else self._calls.push(said))]
