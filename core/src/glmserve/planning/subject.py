"""What a plan is made of: a model's headers, and what is installed to run it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from glmserve.api import Checkpoint, CheckpointError, ModelFamily, Quantization
from glmserve.models.glm_moe_dsa.config import FAMILY, GlmConfig, read_config
from glmserve.profiles import Profile

from .cache import KV_DTYPES, CacheEntry, glm_cache, paged_cache
from .drafters import DrafterModel, dflash2
from .facts import load_facts
from .weights import Weights, check_layers, weigh

NEXT_TOKEN = "mtp"
"""The drafter that runs the checkpoint's own next-token layers."""


@dataclass(frozen=True)
class Subject:
    checkpoint: Checkpoint
    headers: str
    """Where its headers come from, for people."""
    family: ModelFamily
    quantization: Quantization | None
    """None while it is not installed."""

    def glm(self) -> GlmConfig | None:
        """Of family glm_moe_dsa the plan knows more than a family's description says."""
        return read_config(self.checkpoint.config) if self.family.name == FAMILY else None

    def weights(self, tensor: int) -> tuple[Weights, ...]:
        """Raises ConfigError when the model cannot be dealt out over `tensor` ranks, and CheckpointError when the
        headers are not those of the configuration."""
        glm = self.glm()
        if glm is not None:
            check_layers(self.checkpoint, glm)
        return weigh(self.checkpoint, tensor, self.quantization, glm)

    def cache(self, kv_dtype: str, mtp: bool) -> tuple[CacheEntry, ...]:
        """Raises CheckpointError when the family does not keep its cache in `kv_dtype`."""
        glm = self.glm()
        if glm is not None:
            return glm_cache(glm, kv_dtype, mtp)
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
