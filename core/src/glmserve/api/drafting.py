"""Seam 2: guessing the next tokens cheaply.

A drafter changes speed and nothing else. The engine samples every position from the target's own logits and accepts a
proposed token only when it equals that sample, so garbage, out-of-range ids included, leaves the output as it was.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import torch

    from .models import Model, ModelInfo


@dataclass(frozen=True)
class Draft:
    """Proposed continuation; `confidence` (same length, 0..1) may be empty."""

    tokens: tuple[int, ...] = ()
    confidence: tuple[float, ...] = ()


class Drafter(ABC):
    """A provider of the drafting seam, one instance per engine and rank. All calls come from one thread."""

    name: ClassVar[str]
    capabilities: ClassVar[frozenset[str]] = frozenset()
    requires: ClassVar[frozenset[str]] = frozenset()
    conflicts: ClassVar[frozenset[str]] = frozenset()
    taps: tuple[int, ...] = ()
    """Target layers whose outputs `observe` receives."""
    replicated: ClassVar[bool] = False
    """True for a drafter that computes with the target's layers: it runs on every rank, which all make the same calls
    and come to the same drafts. Otherwise it runs on rank 0 alone."""

    @abstractmethod
    def __init__(self, target: ModelInfo, options: Mapping[str, Any]) -> None:
        """`options` come from the profile's [drafter.options]; an unknown one raises ConfigError."""

    def attach(self, model: Model) -> None:  # noqa: B027 - most drafters need nothing of it
        """The target is loaded; called once, before anything is observed.

        Raises CheckpointError when the target lacks what the drafter needs.
        """

    @abstractmethod
    def observe(self, sequence: int, start: int, tokens: Sequence[int], taps: Mapping[int, torch.Tensor]) -> None:
        """Tokens at positions start, start + 1, ... of `sequence` are now final (prompt or accepted).

        Calls come in order of position and without gaps. taps: layer -> float32 [len(tokens), hidden]; empty for
        tokens that the prefix cache restored.
        """

    @abstractmethod
    def propose(self, sequence: int, pending: int, depth: int) -> Draft:
        """At most `depth` tokens that may follow `pending`, the token sampled last.

        `pending` stands right after all that was observed; it has no entry in the pages yet. Changes nothing observed.
        """

    @abstractmethod
    def forget(self, sequence: int) -> None:
        """The sequence ended or was preempted. Forgetting an unknown sequence is safe."""

    def memory_bytes(self, tokens: int) -> int:
        """Bytes of state for a context of `tokens`."""
        return 0
