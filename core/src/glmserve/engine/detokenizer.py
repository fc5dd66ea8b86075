"""Tokens to text, one at a time: holds back incomplete UTF-8 and anything that may still become a stop string."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer

REPLACEMENT = "\ufffd"
MAX_HELD_TOKENS = 8
"""A character is at most four bytes, so at most four byte tokens; past this the bytes are simply not UTF-8."""


class Detokenizer:
    """The text of one sequence. `push` of every token, then `finish`, concatenated, is the whole text."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._ids: list[int] = []
        self._context = 0
        """First id that is decoded again, so that a decoder that looks left (spaces) sees its neighbour."""
        self._read = 0
        """First id whose text is not out yet."""
        self._held = ""
        self._stopped = False

    @property
    def stopped(self) -> bool:
        return self._stopped

    def push(self, token_id: int) -> str:
        """Text that is now certain; may be empty."""
        if self._stopped:
            return ""
        self._ids.append(token_id)
        return self._release(self._decode(final=False), final=False)

    def finish(self) -> str:
        """The text still held back. Incomplete UTF-8 becomes one replacement character."""
        if self._stopped:
            return ""
        return self._release(self._decode(final=True), final=True)

    def _decode(self, final: bool) -> str:
        before = self._tokenizer.decode(self._ids[self._context : self._read], skip_special_tokens=True)
        after = self._tokenizer.decode(self._ids[self._context :], skip_special_tokens=True)
        incomplete = after.endswith(REPLACEMENT) and len(self._ids) - self._read <= MAX_HELD_TOKENS
        if incomplete and not final:
            return ""
        self._context, self._read = self._read, len(self._ids)
        text = after[len(before) :]
        if final and text.endswith(REPLACEMENT):
            text = text.rstrip(REPLACEMENT) + REPLACEMENT
        return text

    def _release(self, text: str, final: bool) -> str:
        buffer = self._held + text
        self._held = ""
        found = [(at, stop) for stop in self._stop if (at := buffer.find(stop)) >= 0]
        if found:
            self._stopped = True
            return buffer[: min(found)[0]]
        if not final:
            keep = max((overlap(buffer, stop) for stop in self._stop), default=0)
            if keep:
                buffer, self._held = buffer[:-keep], buffer[-keep:]
        return buffer


def overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
