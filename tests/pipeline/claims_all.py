# SPDX-License-Identifier: Apache-2.0
"""A prefix cache for tests, a plugin in one file: it claims to know every prompt, and leaves the pages as they are.

Pages that nothing was written to hold zeros on every rank, so that a context of any length is there at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from glmserve.api import Match, Pages, PrefixCache, hookimpl


class ClaimsAll(PrefixCache):
    name = "claims-all"
    capabilities = frozenset({"ranks"})

    def __init__(self, pages: Pages, fingerprint: str, options: Mapping[str, Any]) -> None:
        self._page_tokens = pages.page_tokens

    def match(self, tokens: Sequence[int], salt: bytes) -> Match:
        return Match(len(tokens) // self._page_tokens * self._page_tokens)

    def restore(self, match: Match, pages: Sequence[int]) -> int:
        return len(pages) * self._page_tokens

    def store(self, tokens: Sequence[int], salt: bytes, pages: Sequence[int]) -> None:
        pass

    def evict(self, nbytes: int) -> int:
        return 0

    def stats(self) -> Mapping[str, float]:
        return {}


@hookimpl
def prefix_caches() -> list[type[PrefixCache]]:
    return [ClaimsAll]
