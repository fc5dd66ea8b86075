"""Finding tags in a text that comes in pieces.

Every tag begins with "<" and has no other one, so that the first tag of a text is the same however the text is cut.
"""

from __future__ import annotations

from collections.abc import Sequence

from glmserve.engine.detokenizer import overlap

THINK, THINK_END = "<think>", "</think>"
CALL, CALL_END = "<tool_call>", "</tool_call>"
KEY, KEY_END = "<arg_key>", "</arg_key>"
VALUE, VALUE_END = "<arg_value>", "</arg_value>"
ALL = (THINK, THINK_END, CALL, CALL_END, KEY, KEY_END, VALUE, VALUE_END)


def split(text: str, tags: Sequence[str]) -> tuple[str, str, str]:
    """(before, tag, after) at the first of `tags`.

    Without one, `tag` is "" and `after` is the end of `text` that may still become one: it has to be held back.
    """
    found = [(at, tag) for tag in tags if (at := text.find(tag)) >= 0]
    if found:
        at, tag = min(found)
        return text[:at], tag, text[at + len(tag) :]
    cut = len(text) - max((overlap(text, tag) for tag in tags), default=0)
    return text[:cut], "", text[cut:]


def leading(text: str, tags: Sequence[str]) -> str | None:
    """The tag that `text` begins with; "" while it may still become one; None when it cannot."""
    for tag in tags:
        if text.startswith(tag):
            return tag
    return "" if any(tag.startswith(text) for tag in tags) else None
