"""What the plan asks of family `glm_moe_dsa`: its tensors under their stored names, and what a token leaves behind.

Sizes, names and layouts are the family's own; only which layers are counted is decided here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from glmserve.api import LinearSpec, PagedTensor
from glmserve.models.config import Keys
from glmserve.models.glm_moe_dsa import GlmMoeDsa
from glmserve.models.glm_moe_dsa.config import GlmConfig, read_config
from glmserve.models.glm_moe_dsa.layout import (
    EMBEDDING,
    FINAL_NORM,
    HEAD,
    Shapes,
    index_entry,
    layer_linears,
    layer_vectors,
    nextn_linears,
    nextn_vectors,
    paged_of,
)


def known_config(config: Mapping[str, Any]) -> GlmConfig | None:
    """The configuration, when it names an architecture of the family. Raises CheckpointError for an odd one."""
    asked = Keys(config).names("architectures")
    return read_config(config) if GlmMoeDsa.architectures.intersection(asked) else None


def tensor_shapes(config: GlmConfig) -> Shapes:
    """Every tensor of an unquantized checkpoint, name -> shape, layer by layer, the next-token layer included."""
    shapes: Shapes = {EMBEDDING: (config.vocab_size, config.hidden)}
    for i, (full, sparse) in enumerate(zip(config.full_indexer, config.sparse_mlp, strict=True)):
        shapes |= layer_vectors(config, i, full, sparse) | _weights(layer_linears(config, i, full, sparse))
    if config.nextn_layers:
        shapes |= nextn_vectors(config) | _weights(nextn_linears(config))
    return {**shapes, FINAL_NORM: (config.hidden,), f"{HEAD}.weight": (config.vocab_size, config.hidden)}


def paged_tensors(config: GlmConfig, kv_dtype: str) -> list[PagedTensor]:
    """Of every layer of the trunk."""
    return [tensor for i, full in enumerate(config.full_indexer) for tensor in paged_of(config, i, full, kv_dtype)]


def next_token_paged(config: GlmConfig, kv_dtype: str) -> list[PagedTensor]:
    """Of the next-token layer, which selects itself; nothing without one."""
    return list(paged_of(config, config.layers, True, kv_dtype)) if config.nextn_layers else []


def index_names(config: GlmConfig, kv_dtype: str) -> set[str]:
    """The last words of the names of the indexers' paged tensors; all others are read where an indexer selects."""
    return {tensor.name.rpartition(".")[2] for tensor in index_entry(config, 0, kv_dtype).paged}


def _weights(linears: Iterable[LinearSpec]) -> Shapes:
    return {
        f"{part}.weight": (features, spec.in_features)
        for spec in linears
        for part, features in zip(spec.parts, spec.part_features, strict=True)
    }
