"""Seam 3: remembering what was already computed.

The cache maps token prefixes to page images. A page image is every paged tensor of that page, by construction:
`Pages.image` returns all of them, so a tensor added to a model cannot be forgotten by a cache.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    import torch


class Pages(Protocol):
    """The engine's page pool as a cache sees it."""

    page_tokens: int
    """Positions that a page stands for."""

    def image(self, page: int) -> Mapping[str, torch.Tensor]:
        """Views of every paged tensor of one page, name -> [entries, *per_token]; writes go to the page.

        The entries are those of the page's positions that this rank keeps: all of them, or its share.
        """


@dataclass(frozen=True)
class Match:
    """The longest known prefix. `length` tokens, a multiple of the page size; 0 is a miss."""

    length: int = 0
    handle: Any = None
    """The cache's own; the engine only passes it back."""
    reason: str = ""
    """Why no longer prefix matched, for the user to read."""


class PrefixCache(ABC):
    """A provider of the caching seam, one instance per rank. All calls come from the engine's thread."""

    name: ClassVar[str]
    capabilities: ClassVar[frozenset[str]] = frozenset()
    """"ranks": a hit counts only when every rank restored it, so that several may share a model."""
    requires: ClassVar[frozenset[str]] = frozenset()
    conflicts: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def __init__(self, pages: Pages, fingerprint: str, options: Mapping[str, Any]) -> None:
        """`fingerprint` names everything that changes a page's bytes. An unknown option raises ConfigError."""

    @abstractmethod
    def match(self, tokens: Sequence[int], salt: bytes) -> Match:
        """The longest prefix of `tokens` stored under the same salt. Does not change the pages."""

    @abstractmethod
    def restore(self, match: Match, pages: Sequence[int]) -> int:
        """Fill `pages` (the first len(pages) pages of the match) and return the tokens restored.

        Fewer than asked is allowed; the caller recomputes the rest. Pages past the returned length may hold anything.
        """

    @abstractmethod
    def store(self, tokens: Sequence[int], salt: bytes, pages: Sequence[int]) -> None:
        """Offer full pages: page i holds tokens[i * page_tokens : (i + 1) * page_tokens]. Storing twice is safe.

        The images must be copied before this returns.
        """

    @abstractmethod
    def evict(self, nbytes: int) -> int:
        """Give back at least `nbytes` if possible, and return the bytes given back. Evicting 0 is safe."""

    @abstractmethod
    def stats(self) -> Mapping[str, float]:
        """Counters and gauges for /metrics; every value finite."""

    def verify(self) -> list[str]:
        """Check internal integrity; one sentence per fault."""
        return []

    def close(self) -> None:  # noqa: B027 (a cache in memory has nothing to do)
        """Write what must survive, and let go of threads and files."""
