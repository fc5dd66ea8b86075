"""GLM-5.3 as the plan knows it, and other kits of it."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from glmserve.api import Checkpoint
from glmserve.models.glm_moe_dsa import GlmMoeDsa
from glmserve.models.glm_moe_dsa.config import GlmConfig, read_config
from glmserve.planning.facts import Facts, Widths, load_facts
from glmserve.planning.headers import PlannedCheckpoint
from glmserve.planning.subject import Subject
from glmserve.planning.weights import Weights, weigh

HERE = Path("nowhere")


@cache
def facts() -> Facts:
    return load_facts("glm-5.3-exl3-3.38bpw", HERE)


@cache
def shape() -> GlmConfig:
    return read_config(facts().config)


def stored_as(quantization: dict[str, Any] | None, **config: Any) -> Checkpoint:
    """The same model with other weights; None is plain bfloat16."""
    changed = {**facts().config, "quantization_config": quantization, **config}
    return PlannedCheckpoint(Facts(about="a test", config=changed), HERE)


@cache
def kit(experts: float, next_token_experts: float, head: float) -> Checkpoint:
    """EXL3 with 5 bits for what is no routed expert."""
    widths = Widths(linears=5, experts=experts, next_token_experts=next_token_experts, head=head)
    return PlannedCheckpoint(facts().model_copy(update={"widths": widths}), HERE)


@cache
def shipped() -> Checkpoint:
    return PlannedCheckpoint(facts(), HERE)


@cache
def shipped_weights(tensor: int = 4) -> tuple[Weights, ...]:
    return weigh(shipped(), tensor, None, shape())


def subject() -> Subject:
    return Subject(shipped(), "a test", GlmMoeDsa(), None)


def stored_bytes(checkpoint: Checkpoint) -> int:
    return sum(info.nbytes for info in checkpoint.tensors.values())
