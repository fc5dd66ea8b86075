"""What a drafter with a model of its own adds to every rank."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from glmserve.api import CheckpointError
from glmserve.models.config import Keys

from .facts import Facts

ARCHITECTURE = "DFlash2DraftModel"
RING_MARGIN = 2
"""The ring of a drafter's window holds twice the window, so that a prompt chunk can be written while it is read."""
BF16_BYTES = 2


@dataclass(frozen=True)
class DrafterModel:
    """Held whole by every rank: a replicated drafter gives the same drafts everywhere."""

    hidden_size: int
    vocab_size: int
    parameters: int
    weights_bytes: int
    state_bytes: int
    """Of one conversation, whatever its length."""


def dflash2(facts: Facts) -> DrafterModel:
    """A DFlash2 drafter in bfloat16. Raises CheckpointError for another architecture or an odd configuration.

    Its attention looks back over a window, so that its cache is a ring: [ring, layers, key and value, kv heads, dim].
    """
    config = facts.config
    if ARCHITECTURE not in Keys(config).names("architectures"):
        raise CheckpointError(f"The drafter's facts are of {config.get('architectures')!r}, and not of {ARCHITECTURE}.")
    parameters = _parameters(config)
    keys = Keys(config)
    entry = 2 * keys.positive("num_key_value_heads") * keys.positive("head_dim") * BF16_BYTES
    ring = RING_MARGIN * keys.positive("sliding_window")
    return DrafterModel(
        hidden_size=keys.positive("hidden_size"),
        vocab_size=keys.positive("vocab_size"),
        parameters=parameters,
        weights_bytes=parameters * BF16_BYTES,
        state_bytes=ring * keys.positive("num_hidden_layers") * entry,
    )


def check_target(drafter: DrafterModel, hidden_size: int, vocab_size: int) -> None:
    """It shares embedding, head and hidden states with its target. Raises CheckpointError when they cannot be."""
    if (drafter.hidden_size, drafter.vocab_size) != (hidden_size, vocab_size):
        raise CheckpointError(
            f"The drafter's facts are of hidden size {drafter.hidden_size} and {drafter.vocab_size} tokens, and the "
            f"model has {hidden_size} and {vocab_size}: it drafts for another model."
        )


def _parameters(config: Mapping[str, Any]) -> int:
    """Every tensor of the drafter; embedding and head are the target's."""
    keys = Keys(config)
    own = Keys(keys.section("dflash_config"))
    hidden, inner = keys.positive("hidden_size"), keys.positive("intermediate_size")
    dim = keys.positive("head_dim")
    queries, kv = keys.positive("num_attention_heads") * dim, keys.positive("num_key_value_heads") * dim
    taps = len(own.token_ids("target_layer_ids"))
    if not taps:
        raise CheckpointError("The drafter's facts have no dflash_config.target_layer_ids, which has no default.")
    kernel, groups = own.positive("conv_kernel_size"), math.ceil(hidden / own.positive("conv_group_size"))
    rank = own.positive("selector_rank")
    attention = 2 * hidden * queries + 2 * kv * hidden + 2 * dim
    # Before and after each of attention and MLP, a kernel of its own: a base for every channel, and a projection of the
    # row to a correction for every group.
    convolutions = 2 * (2 * kernel * hidden + 2 * kernel * groups * hidden)
    layer = attention + convolutions + 3 * hidden * inner + 2 * hidden
    top = taps * hidden * hidden + 2 * hidden + 2 * keys.positive("vocab_size") * rank + rank * hidden
    return top + keys.positive("num_hidden_layers") * layer
