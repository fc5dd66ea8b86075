"""What a reply is made of, in the order in which it comes.

Texts of one kind that follow each other are one text: how they were cut says nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Reasoning:
    """What the model thinks before it answers."""

    text: str


@dataclass(frozen=True)
class Content:
    """The answer itself."""

    text: str


@dataclass(frozen=True)
class CallStart:
    """A tool is called. The name comes once and whole."""

    index: int
    """0 for the first call of the reply."""
    name: str


@dataclass(frozen=True)
class CallArguments:
    """More of a call's arguments: a piece of the text of a JSON object."""

    index: int
    text: str


Delta = Reasoning | Content | CallStart | CallArguments


def joined(deltas: Iterable[Delta]) -> list[Delta]:
    """`deltas` with neighbours of one kind as one, and without empty texts."""
    result: list[Delta] = []
    for delta in deltas:
        last = result[-1] if result else None
        if isinstance(delta, Reasoning) and isinstance(last, Reasoning):
            result[-1] = Reasoning(last.text + delta.text)
        elif isinstance(delta, Content) and isinstance(last, Content):
            result[-1] = Content(last.text + delta.text)
        elif isinstance(delta, CallArguments) and isinstance(last, CallArguments) and last.index == delta.index:
            result[-1] = CallArguments(delta.index, last.text + delta.text)
        elif isinstance(delta, CallStart) or delta.text:
            result.append(delta)
    return result
