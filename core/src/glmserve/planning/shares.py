"""How much of each cut layer the rank holds that holds most of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from glmserve.models.config import Keys
from glmserve.models.cuts import attention, spread

from .components import Component, Split, part_of, split_of

WHOLE = Fraction(1)
HEAD = "lm_head"
KEYS_AND_VALUES = ("k_proj", "v_proj")


@dataclass(frozen=True)
class Shares:
    """Of a model that is cut over some ranks, as its family cuts it: whole heads, and single columns and tokens."""

    query: Fraction
    """Of what has rows or columns for every query head."""
    kv: Fraction
    """Of the key and value projections of grouped-query attention."""
    columns: Mapping[Component, Fraction]
    """Of the MLPs."""
    vocabulary: Fraction

    def of(self, layer: str) -> Fraction:
        """The layer's largest part; 1 where every rank holds it whole."""
        if split_of(layer) is Split.REPLICATED:
            return WHOLE
        if layer == HEAD:
            return self.vocabulary
        if layer.rpartition(".")[2] in KEYS_AND_VALUES:
            return self.kv
        return self.columns.get(part_of(layer), self.query)


def shares(config: Mapping[str, Any], ranks: int) -> Shares:
    """config: as in config.json. Raises ConfigError when a rank would have nothing of a layer that is cut."""
    keys = Keys(config)
    heads = keys.positive("num_attention_heads")
    # Latents serve all heads alike: what is cut of them goes with the query heads.
    kv_heads = heads if "kv_lora_rank" in config else keys.positive("num_key_value_heads", heads)
    parts = attention(heads, kv_heads, ranks)
    inner = keys.positive("intermediate_size")
    expert = keys.positive("moe_intermediate_size", inner)
    columns = {
        Component.DENSE_MLP: inner,
        Component.ROUTED: expert,
        Component.SHARED: expert * keys.positive("n_shared_experts", 1),
    }
    return Shares(
        query=Fraction(max(len(part.query) for part in parts), heads),
        kv=Fraction(max(len(part.kv) for part in parts), kv_heads),
        columns={part: _largest(count, ranks, "intermediate columns in an MLP") for part, count in columns.items()},
        vocabulary=_largest(keys.positive("vocab_size"), ranks, "tokens in its vocabulary"),
    )


def _largest(total: int, ranks: int, what: str) -> Fraction:
    return Fraction(len(spread(total, ranks, what)[0]), total)
