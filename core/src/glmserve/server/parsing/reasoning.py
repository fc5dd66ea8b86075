"""What is thought and what is said.

The template may have opened the thinking in the prompt already, or closed it, whatever the request asked for; so the
state at the start is read off the rendered prompt. Thinking ends with its closing tag or, where tools may be called,
with the first call: models forget the closing tag before one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from .tags import CALL, THINK, THINK_END, leading, split

Start = Literal["reasoning", "content", "undecided"]
"""Undecided: the prompt says neither, and the model may open the thinking itself as the first thing it does."""


def start_of(prompt: str) -> Start:
    """Where a reply to the rendered `prompt` starts."""
    tail = prompt.rstrip()
    return "reasoning" if tail.endswith(THINK) else "content" if tail.endswith(THINK_END) else "undecided"


class ReasoningParser:
    """Cuts a reply in two. Thinking that never ends is all of it thinking."""

    def __init__(self, start: Start, calls: bool) -> None:
        """`calls`: a tool call ends the thinking."""
        self._state = start
        self._ends = (THINK_END, CALL) if calls else (THINK_END,)
        self._held = ""

    def push(self, text: str) -> tuple[str, str]:
        """(reasoning, other text) that are now certain."""
        text = self._held + text
        self._held = ""
        if self._state == "undecided":
            tag = leading(text.lstrip(), (THINK,))
            if tag == "":
                self._held = text
                return "", ""
            self._state = "content" if tag is None else "reasoning"
            text = text if tag is None else text.lstrip().removeprefix(THINK)
        if self._state == "content":
            return "", text
        thought, tag, rest = split(text, self._ends)
        if not tag:
            self._held = rest
            return thought, ""
        self._state = "content"
        return thought, tag + rest if tag == CALL else rest

    def finish(self) -> tuple[str, str]:
        """What was held back, at the end of the text."""
        held, self._held = self._held, ""
        return (held, "") if self._state == "reasoning" else ("", held)


class ReasoningTokens:
    """Counts the tokens between the tags, from ids: steps of several tokens cross a tag anywhere."""

    def __init__(self, start: Start, opening: int, endings: Sequence[int]) -> None:
        """`opening`, `endings`: ids of the tags that open and end the thinking."""
        self._inside = start == "reasoning"
        self._opening = opening if start == "undecided" else None
        self._endings = frozenset(endings)
        self.count = 0

    def push(self, token_ids: Sequence[int]) -> None:
        for token in token_ids:
            if self._inside and token in self._endings:
                self._inside, self._opening = False, None
            elif self._inside:
                self.count += 1
            elif token == self._opening:
                self._inside = True
