"""What goes into the engine and what comes out: plain data, no tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from .ranks import RankStatus

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True)
class SamplingParams:
    """How a token is chosen from its logits. Ranges are validated by the server before the engine sees them."""

    temperature: float = 1.0
    """0 is greedy."""
    top_k: int = 0
    """0: no limit."""
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0
    """64-bit. The server draws one when the request names none."""


class TextStop(Protocol):
    """Turns tokens into text and knows when a stop string ended it (see `engine.detokenizer`)."""

    def push(self, token_id: int) -> str:
        """Text that is now certain; may be empty."""

    @property
    def stopped(self) -> bool:
        """A stop string has matched: what `push` returned is all the text there is."""

    def finish(self) -> str:
        """The text still held back, at the end of a stream that no stop string ended."""


@dataclass(frozen=True)
class Request:
    """One sequence to generate. `n` choices are n requests."""

    prompt: tuple[int, ...]
    max_tokens: int
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop_ids: frozenset[int] = frozenset()
    """Tokens that end the sequence; they are not part of its text."""
    ignore_eos: bool = False
    min_tokens: int = 0
    """Stop ids cannot be chosen before this many tokens."""
    logprobs: int | None = None
    """None: none. k: each token's log-probability and the k most likely alternatives."""
    draft: bool = True
    text: TextStop | None = None
    salt: bytes = b""
    """Prefix-cache namespace."""


@dataclass(frozen=True)
class TokenLogprob:
    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """(token id, log-probability), most likely first, of the unmodified distribution."""


@dataclass(frozen=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0


@dataclass(frozen=True)
class Output:
    """What one engine step adds to a stream. The last one of a stream has `finish_reason`."""

    token_ids: tuple[int, ...] = ()
    text: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    """On the last output."""
    error: str = ""
    fault: str = ""
    """Of ranks, and not of the request: what its client may know of the error."""


@dataclass(frozen=True)
class EngineStatus:
    """A snapshot for /readyz, /status and /metrics. Counters only grow."""

    state: Literal["starting", "ready", "draining", "stopped", "failed"]
    reason: str
    waiting: int
    running: int
    pages_total: int
    pages_free: int
    steps: int
    seconds_since_step: float
    """Since the loop last finished a step or was found idle: an idle engine stays near 0, a stuck one grows."""
    seconds_since_token: float | None
    """Since a real request last produced a token; None before the first."""
    prompt_tokens: int
    generated_tokens: int
    cached_tokens: int
    drafted_tokens: int
    accepted_tokens: int
    preemptions: int
    finished: Mapping[str, int]
    """finish reason -> requests"""
    exact: bool
    max_context: int
    ranks: tuple[RankStatus, ...]
