"""Lossless verification: a draft is accepted only when it equals the token that serial decoding would sample there."""

from __future__ import annotations

from collections.abc import Callable, Sequence


def verify(drafts: Sequence[int], next_token: Callable[[int], int | None]) -> tuple[list[int], int]:
    """Walk the window from its pending row.

    next_token(i) samples from logits row i, given all tokens it returned before, and returns None when the sequence
    has ended. Row i + 1 was computed with drafts[i] as its input, so it counts only while the sample equals the draft.
    Returns (new tokens, how many of them were drafted): accepted drafts, then one token more.
    """
    tokens: list[int] = []
    for i in range(len(drafts) + 1):
        token = next_token(i)
        if token is None:
            break
        tokens.append(token)
        if i == len(drafts) or token != drafts[i]:
            return tokens, i
    return tokens, len(tokens)
