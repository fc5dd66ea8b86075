"""Which part of a model a tensor belongs to, and how tensor parallelism cuts it, by its Hugging Face name."""

from __future__ import annotations

import re
from enum import StrEnum


class Component(StrEnum):
    """The parts that a plan counts separately, in the order in which it shows them."""

    EMBEDDING = "embedding"
    ATTENTION = "attention"
    INDEXER = "indexer"
    DENSE_MLP = "dense MLP"
    ROUTED = "routed experts"
    SHARED = "shared expert"
    ROUTER = "router"
    NORMS = "norms"
    HEAD = "head"
    MTP = "MTP layer"
    OTHER = "other"


class Split(StrEnum):
    """How the ranks share a linear layer of weight [out, in]."""

    REPLICATED = "replicated"
    ROWS = "rows"
    """Each rank computes a part of the outputs."""
    COLUMNS = "columns"
    """Each rank takes a part of the inputs, and the results are summed over the ranks."""


_SUFFIXES = ("weight", "weight_scale_inv", "bias", "trellis", "suh", "svh", "su", "sv", "mcg", "mul1")
"""What a stored tensor's name adds to that of its layer: plain, block-FP8, and EXL3 storage."""

_ROWS = {"q_proj", "k_proj", "v_proj", "q_b_proj", "kv_b_proj", "gate_proj", "up_proj", "lm_head"}
_COLUMNS = {"o_proj", "down_proj"}


def layer_of(tensor: str) -> str:
    """The name of the layer that a stored tensor is part of: its own without "weight", "trellis" and the like."""
    base, _, suffix = tensor.rpartition(".")
    return base if suffix in _SUFFIXES and base else tensor


def split_of(layer: str) -> Split:
    """The cut that keeps whole heads and whole expert channels on a rank; what has neither is replicated."""
    last = layer.rpartition(".")[2]
    return Split.ROWS if last in _ROWS else Split.COLUMNS if last in _COLUMNS else Split.REPLICATED


def component_of(layer: str, num_layers: int) -> Component:
    """The part of the model that `layer` belongs to. Layers from `num_layers` on predict further tokens (MTP)."""
    index = re.match(r"model\.layers\.(\d+)\.", layer)
    if index and int(index[1]) >= num_layers:
        return Component.MTP
    return part_of(layer)


def part_of(layer: str) -> Component:
    """The same, of a layer of the trunk or within a next-token layer."""
    if layer == "lm_head":
        return Component.HEAD
    if layer == "model.embed_tokens":
        return Component.EMBEDDING
    if ".indexer." in layer:
        return Component.INDEXER
    if layer.rpartition(".")[2].endswith("norm"):
        return Component.NORMS
    for part, component in (
        (".self_attn.", Component.ATTENTION),
        (".mlp.experts.", Component.ROUTED),
        (".mlp.shared_experts.", Component.SHARED),
        (".mlp.gate.", Component.ROUTER),
        (".mlp.", Component.DENSE_MLP),
    ):
        if part in f"{layer}.":
            return component
    return Component.OTHER
