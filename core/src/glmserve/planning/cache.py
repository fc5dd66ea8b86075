"""Bytes that a token of context takes in the cache."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from glmserve.api import PagedTensor

from .glm_moe_dsa import GlmShape

KV_DTYPES = ("float32", "bfloat16", "float16", "float8_e4m3")
"""Every type that a profile may ask for."""

ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3": 1, "float8_e4m3fn": 1, "uint8": 1}
SCALE_BYTES = 4
"""Scales of FP8 entries are float32."""
FLOAT8_GROUP = 128
"""Elements that share a scale."""


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


def glm_cache(glm: GlmShape, kv_dtype: str, mtp: bool) -> tuple[CacheEntry, ...]:
    """Latents (after their norm) with the rotary key, and the indexers' keys on the layers that have one.

    In float8_e4m3 every 128 elements of a latent or an index key have a scale, and the rotary key stays bfloat16. `mtp`
    adds the next-token layers, which keep both.
    """
    element = ELEMENT_BYTES[kv_dtype]
    if kv_dtype == "float8_e4m3":
        latent = _float8_bytes(glm.kv_lora_rank) + ELEMENT_BYTES["bfloat16"] * glm.qk_rope_head_dim
        key = _float8_bytes(glm.index_head_dim)
    else:
        latent = (glm.kv_lora_rank + glm.qk_rope_head_dim) * element
        key = glm.index_head_dim * element
    more = glm.num_nextn_predict_layers if mtp else 0
    return (
        CacheEntry("latents", glm.num_hidden_layers + more, latent, most_read=glm.index_topk),
        CacheEntry("index keys", len(glm.full_indexers) + more, key),
    )


def _float8_bytes(width: int) -> int:
    return width * ELEMENT_BYTES["float8_e4m3"] + SCALE_BYTES * math.ceil(width / FLOAT8_GROUP)


def paged_cache(paged: Iterable[PagedTensor]) -> tuple[CacheEntry, ...]:
    """The cache of a family that only lists its paged tensors, [tokens, heads, dimension] each."""
    entries: dict[tuple[str, int], int] = {}
    for tensor in paged:
        entry = (tensor.name.rpartition(".")[2], math.prod(tensor.per_token) * ELEMENT_BYTES[tensor.dtype])
        entries[entry] = entries.get(entry, 0) + 1
    return tuple(CacheEntry(name, layers, nbytes, by_head=True) for (name, nbytes), layers in entries.items())
