"""Bytes that a token of context takes in the cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from glmserve.api import PagedTensor
from glmserve.models.cuts import even
from glmserve.models.entries import FLOAT8, PLAIN
from glmserve.models.glm_moe_dsa.config import GlmConfig

from .glm_moe_dsa import index_names, next_token_paged, paged_tensors

KV_DTYPES = (*PLAIN, FLOAT8)
"""Every type that a profile may ask for."""


@dataclass(frozen=True)
class CacheEntry:
    """Something stored for every token, by `layers` layers alike."""

    name: str
    layers: int
    layer_bytes: int
    """Bytes of one token in one layer."""
    kv_heads: int = 0
    """Each rank keeps those of the key-value heads that it computes. 0: it serves all heads, and every rank needs it
    whole, unless context parallelism deals the positions out."""
    replicated: bool = False
    """Of a drafter that every rank runs: each keeps all positions."""
    most_read: int | None = None
    """Tokens that one step reads at most; None reads the whole context."""

    @property
    def token_bytes(self) -> int:
        return self.layers * self.layer_bytes

    def rank_token_bytes(self, tensor: int, context: int) -> float:
        """Bytes that one token of context costs a rank, on average over the positions; the one that keeps most heads
        where the ranks differ."""
        if self.kv_heads:
            largest = len(even(self.kv_heads, min(tensor, self.kv_heads))[0])
            return self.token_bytes * largest / self.kv_heads
        return self.token_bytes / (1 if self.replicated else context)

    def rank_read_bytes(self, tokens: int, tensor: int, context: int) -> float:
        """Bytes that a rank reads to decode one token after a context of `tokens`."""
        read = tokens if self.most_read is None else min(tokens, self.most_read)
        return read * self.rank_token_bytes(tensor, context)


def glm_cache(glm: GlmConfig, kv_dtype: str, mtp: bool) -> tuple[CacheEntry, ...]:
    """What the family keeps of a token: latents, of which a step reads the selected ones, and every index key.

    `mtp` adds those of the next-token layer.
    """
    keys = index_names(glm, kv_dtype)
    trunk = paged_cache(paged_tensors(glm, kv_dtype))
    drafter = paged_cache(next_token_paged(glm, kv_dtype) if mtp else ())
    return tuple(
        replace(entry, kv_heads=0, most_read=None if entry.name in keys else glm.index_topk)
        for entry in (*trunk, *(replace(own, replicated=True) for own in drafter))
    )


def paged_cache(paged: Iterable[PagedTensor]) -> tuple[CacheEntry, ...]:
    """The cache of a family that only lists its paged tensors, [tokens, heads, dimension] each."""
    entries = Counter((tensor.name.rpartition(".")[2], tensor.token_bytes, tensor.per_token[0]) for tensor in paged)
    return tuple(CacheEntry(name, layers, nbytes, heads) for (name, nbytes, heads), layers in entries.items())
