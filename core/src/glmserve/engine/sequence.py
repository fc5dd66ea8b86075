"""One sequence on its way through the engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from .request import Output, Request, Usage


@dataclass(eq=False)  # one that is looked for in a queue is that very one
class Sequence:
    """Invariant: pages hold entries for positions [0, computed), and `tokens` is prompt then generated.

    While decoding, computed == len(tokens) - 1: the last token is *pending*, sampled but not yet computed. After a
    preemption computed falls to 0 and the same tokens are computed again by the same calls: the prompt in chunks on
    the grid, the generated part as decode rows.
    """

    id: int
    request: Request
    deliver: Callable[[Output], None]
    ends: frozenset[int]
    """Token ids that end it."""
    tokens: list[int] = field(default_factory=list)
    computed: int = 0
    pages: list[int] = field(default_factory=list)
    told_pages: int = 0
    """Of `pages`, how many the ranks have been told of."""
    counts: Counter[int] = field(default_factory=Counter)
    """Generated tokens by id, for the penalties."""
    preempted: bool = False
    cached: int = 0
    """Prompt tokens that the prefix cache had when it was first admitted."""
    drafted: int = 0
    accepted: int = 0
    observed: int = 0
    """Positions the drafter has been told of."""
    undraftable: bool = False
    """The drafter missed tokens of it, and may only be told of consecutive ones."""
    aborted: bool = False

    def __post_init__(self) -> None:
        self.tokens = list(self.request.prompt)

    @property
    def prompt_length(self) -> int:
        return len(self.request.prompt)

    @cached_property
    def prompt_ids(self) -> frozenset[int]:
        """The tokens that occur in the prompt: few, whatever its length, and needed at every token by a penalty."""
        return frozenset(self.request.prompt)

    @property
    def generated(self) -> int:
        return len(self.tokens) - self.prompt_length

    @property
    def prefilling(self) -> bool:
        return self.computed < self.prompt_length

    @property
    def room(self) -> int:
        """Tokens it may still generate."""
        return self.request.max_tokens - self.generated

    def append(self, token: int) -> None:
        self.tokens.append(token)
        self.counts[token] += 1

    def usage(self) -> Usage:
        return Usage(self.prompt_length, self.generated, self.cached, self.drafted, self.accepted)
