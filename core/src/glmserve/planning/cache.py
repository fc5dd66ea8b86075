"""Bytes that a token of context takes in the cache."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from glmserve.api import PagedTensor
from glmserve.models.entries import FLOAT8, PLAIN
from glmserve.models.glm_moe_dsa.config import GlmConfig

from .glm_moe_dsa import index_names, paged_tensors

KV_DTYPES = (*PLAIN, FLOAT8)
"""Every type that a profile may ask for."""


@dataclass(frozen=True)
class CacheEntry:
    """Something stored for every token, by `layers` layers alike."""

    name: str
    layers: int
    layer_bytes: int
    """Bytes of one token in one layer."""
    by_head: bool = False
    """Each rank keeps the heads that it computes. Latents are shared by all heads, so every rank needs them whole,
    unless context parallelism deals the positions out."""
    most_read: int | None = None
    """Tokens that one step reads at most; None reads the whole context."""

    @property
    def token_bytes(self) -> int:
        return self.layers * self.layer_bytes

    def rank_token_bytes(self, tensor: int, context: int) -> float:
        """Bytes that one token of context costs a rank, on average over the positions."""
        return self.token_bytes / (tensor if self.by_head else context)

    def rank_read_bytes(self, tokens: int, tensor: int, context: int) -> float:
        """Bytes that a rank reads to decode one token after a context of `tokens`."""
        read = tokens if self.most_read is None else min(tokens, self.most_read)
        return read * self.rank_token_bytes(tensor, context)


def glm_cache(glm: GlmConfig, kv_dtype: str, mtp: bool) -> tuple[CacheEntry, ...]:
    """What the family keeps of a token: latents, of which a step reads the selected ones, and every index key.

    `mtp` adds those of the next-token layer.
    """
    keys = index_names(glm, kv_dtype)
    return tuple(
        replace(entry, by_head=False, most_read=None if entry.name in keys else glm.index_topk)
        for entry in paged_cache(paged_tensors(glm, kv_dtype, mtp))
    )


def paged_cache(paged: Iterable[PagedTensor]) -> tuple[CacheEntry, ...]:
    """The cache of a family that only lists its paged tensors, [tokens, heads, dimension] each."""
    entries: dict[tuple[str, int], int] = {}
    for tensor in paged:
        entry = (tensor.name.rpartition(".")[2], tensor.token_bytes)
        entries[entry] = entries.get(entry, 0) + 1
    return tuple(CacheEntry(name, layers, nbytes, by_head=True) for (name, nbytes), layers in entries.items())
