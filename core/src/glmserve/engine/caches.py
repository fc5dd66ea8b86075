"""The built-in prefix cache: `none`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from glmserve.api import ConfigError, Match, Pages, PrefixCache


class NoCache(PrefixCache):
    """Remembers nothing: every prompt is computed."""

    name = "none"
    capabilities = frozenset({"ranks"})

    def __init__(self, pages: Pages, fingerprint: str, options: Mapping[str, Any]) -> None:
        if options:
            raise ConfigError(f"cache 'none' has no options; remove {', '.join(sorted(options))}.")

    def match(self, tokens: Sequence[int], salt: bytes) -> Match:
        return Match(reason="no prefix cache is configured")

    def restore(self, match: Match, pages: Sequence[int]) -> int:
        return 0

    def store(self, tokens: Sequence[int], salt: bytes, pages: Sequence[int]) -> None:
        pass

    def evict(self, nbytes: int) -> int:
        return 0

    def stats(self) -> Mapping[str, float]:
        return {}
