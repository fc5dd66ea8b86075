"""What a plan is made of: a model's headers, and what is installed to run it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from glmserve.api import Checkpoint, CheckpointError, ConfigError, ModelFamily, Quantization
from glmserve.profiles import Profile

from .cache import KV_DTYPES, CacheEntry, glm_cache, paged_cache
from .drafters import DrafterModel, dflash2
from .facts import load_facts
from .glm_moe_dsa import GlmShape
from .headers import known_shape
from .weights import Weights, check_layers, weigh

NEXT_TOKEN = "mtp"
"""The drafter that runs the checkpoint's own next-token layers."""


@dataclass(frozen=True)
class Subject:
    checkpoint: Checkpoint
    headers: str
    """Where its headers come from, for people."""
    family: ModelFamily | None
    """None while it is not installed."""
    quantization: Quantization | None

    def glm(self) -> GlmShape | None:
        """The model's shape when it is one that the plan knows by itself. Raises CheckpointError for odd headers."""
        glm = known_shape(self.checkpoint.config)
        if glm is not None:
            check_layers(self.checkpoint, glm)
        return glm

    def weights(self, tensor: int) -> tuple[Weights, ...]:
        """Raises ConfigError when the heads and experts cannot be dealt out over `tensor` ranks."""
        glm = known_shape(self.checkpoint.config)
        if glm is not None:
            for key in ("num_attention_heads", "moe_intermediate_size", "intermediate_size", "vocab_size"):
                if getattr(glm, key) % tensor:
                    raise ConfigError(
                        f"parallel.tensor is {tensor}, and the model's {key} of {getattr(glm, key)} cannot be dealt "
                        "out evenly; choose a divisor."
                    )
        return weigh(self.checkpoint, tensor, self.quantization, glm)

    def cache(self, kv_dtype: str, mtp: bool) -> tuple[CacheEntry, ...]:
        """Raises CheckpointError when the family does not keep its cache in `kv_dtype`."""
        glm = known_shape(self.checkpoint.config)
        if glm is not None:
            return glm_cache(glm, kv_dtype, mtp)
        if self.family is None:
            raise CheckpointError(f"No installed model family describes the cache of {self.checkpoint.path}.")
        return paged_cache(self.family.describe(self.checkpoint.config, kv_dtype).paged)

    def caches(self, mtp: bool) -> dict[str, tuple[CacheEntry, ...]]:
        """The cache in every type that the family has."""
        found = {}
        for kv_dtype in KV_DTYPES:
            try:
                found[kv_dtype] = self.cache(kv_dtype, mtp)
            except CheckpointError:
                continue
        return found


def drafter_model(profile: Profile) -> DrafterModel | None:
    """The model that the profile's drafter brings; None when it brings none, or none that is known."""
    name = profile.drafter.facts.get(profile.drafter.name)
    return None if name is None else dflash2(load_facts(name, profile.directory))


def pool_tokens(profile: Profile) -> int:
    """engine.kv_tokens in whole pages."""
    engine = profile.engine
    return engine.page_tokens * (engine.kv_tokens // engine.page_tokens + (engine.kv_tokens % engine.page_tokens > 0))


def pool_bytes(entries: tuple[CacheEntry, ...], tokens: int, tensor: int, context: int) -> int:
    """The cache of a rank when it is full."""
    return math.ceil(sum(tokens * entry.rank_token_bytes(tensor, context) for entry in entries))
