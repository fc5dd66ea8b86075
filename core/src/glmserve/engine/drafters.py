"""The built-in drafters without weights: `none` and `ngram`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from glmserve.api import ConfigError, Draft, Drafter, ModelInfo


class NoDrafter(Drafter):
    """Proposes nothing: serial decoding."""

    name = "none"

    def __init__(self, target: ModelInfo, options: Mapping[str, Any]) -> None:
        if options:
            raise ConfigError(f"drafter 'none' has no options; remove {', '.join(sorted(options))}.")

    def observe(self, sequence: int, start: int, tokens: Sequence[int], taps: Mapping[int, Any]) -> None:
        pass

    def propose(self, sequence: int, pending: int, depth: int) -> Draft:
        return Draft()

    def forget(self, sequence: int) -> None:
        pass


class _History:
    """Tokens of one sequence, and where each n-gram was seen last."""

    def __init__(self, sizes: range) -> None:
        self.tokens: list[int] = []
        self.after: dict[tuple[int, ...], int] = {}
        """n-gram -> index of the token that followed its last occurrence"""
        self._sizes = sizes

    def append(self, token: int) -> None:
        at = len(self.tokens)
        for size in self._sizes:
            if at >= size:
                self.after[tuple(self.tokens[at - size : at])] = at
        self.tokens.append(token)


class NgramDrafter(Drafter):
    """Proposes what followed the last earlier occurrence of the current ending (prompt look-up decoding).

    Options: min (default 2) and max (default 4), the shortest and the longest ending that is looked up.
    """

    name = "ngram"

    def __init__(self, target: ModelInfo, options: Mapping[str, Any]) -> None:
        unknown = set(options) - {"min", "max"}
        if unknown:
            raise ConfigError(f"drafter 'ngram' has no option {sorted(unknown)[0]!r}; its options are min and max.")
        low, high = options.get("min", 2), options.get("max", 4)
        if not (isinstance(low, int) and isinstance(high, int) and 1 <= low <= high <= 16):
            raise ConfigError(f"drafter 'ngram' needs 1 <= min <= max <= 16 (integers), not min={low!r}, max={high!r}.")
        self._sizes = range(low, high + 1)
        self._histories: dict[int, _History] = {}

    def observe(self, sequence: int, start: int, tokens: Sequence[int], taps: Mapping[int, Any]) -> None:
        history = self._histories.setdefault(sequence, _History(self._sizes))
        for token in tokens:
            history.append(token)

    def propose(self, sequence: int, pending: int, depth: int) -> Draft:
        history = self._histories.get(sequence)
        if history is None:
            return Draft()
        for size in reversed(self._sizes):
            tail = history.tokens[len(history.tokens) - size + 1 :] if size > 1 else []
            at = history.after.get((*tail, pending))
            if at is not None:
                return Draft(tuple(history.tokens[at : at + depth]))
        return Draft()

    def forget(self, sequence: int) -> None:
        self._histories.pop(sequence, None)

    def memory_bytes(self, tokens: int) -> int:
        # A list entry, and per n-gram size a dictionary entry with its tuple.
        return tokens * (8 + 200 * len(self._sizes))
