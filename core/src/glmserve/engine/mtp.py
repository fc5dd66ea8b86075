"""The built-in drafter `mtp`: the checkpoint's own next-token layer, chained.

The row of position p needs token p + 1, so the row of the last final token waits for the pending one. Rows of final
tokens always come from the target's hidden states: a chain's rows, made of the layer's own, lie behind them in the
caches and are written over when the target's are there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from glmserve.api import (
    ConfigError,
    Draft,
    Drafter,
    ForwardBatch,
    Model,
    ModelInfo,
    NextTokenLayer,
    NextTokenOutput,
    Segment,
)

MAX_DEPTH = 4
"""Drafts of one chain: each builds on a guess, so that later ones are hardly ever accepted."""
PAGE_TOKENS = 64
WAITING_ROWS = 32
"""Rows of a prompt that are computed together; fewer wait for the next proposal, whose call takes them along."""


class _Context:
    """What is known of one sequence, and the layer's caches for it."""

    def __init__(self, layer: NextTokenLayer, origin: int) -> None:
        self._layer = layer
        self.origin = origin
        """Position of the first row: later than 0 when a prefix cache restored what comes before."""
        self.rows = 0
        """In the caches, all from the target's hidden states."""
        self.tokens: list[int] = []
        """Of the rows that wait, the token after each."""
        self.hidden: list[torch.Tensor] = []
        """Of the rows that wait, and of the last final token: [n, hidden] each."""
        self.guessed: int | None = None
        """The pending token that the last row in the caches was computed with."""
        self._pools: dict[str, torch.Tensor] = {}
        self._pages = 0

    def call(self, tokens: Sequence[int], hidden: torch.Tensor, first: int, logits: int) -> NextTokenOutput:
        """Rows from index `first` of the caches on; `logits` of the last need them."""
        count = len(tokens)
        self._reserve(first + count)
        places = torch.arange(first, first + count)
        batch = ForwardBatch(
            token_ids=torch.tensor(tokens),
            positions=places + self.origin,
            slots=places,
            segments=[Segment(0, count, first, torch.arange(self._pages), chunk=count > 1)],
            logit_rows=torch.arange(count - logits, count),
            page_entries=PAGE_TOKENS,
        )
        return self._layer.forward(batch, hidden, self._pools)

    def _reserve(self, tokens: int) -> None:
        """Doubling, so that a token is moved a constant number of times however long the sequence gets."""
        if tokens <= self._pages * PAGE_TOKENS:
            return
        had, self._pages = self._pages, max(2 * self._pages, -(-tokens // PAGE_TOKENS))
        for paged in self._layer.paged:
            pool = torch.zeros(self._pages, PAGE_TOKENS, *paged.per_token, dtype=getattr(torch, paged.dtype))
            if had:
                pool[:had] = self._pools[paged.name]
            self._pools[paged.name] = pool


class MtpDrafter(Drafter):
    """Proposes what the checkpoint's next-token layer finds most likely."""

    name = "mtp"
    requires = frozenset({"taps", "next-token"})
    replicated = True

    def __init__(self, target: ModelInfo, options: Mapping[str, Any]) -> None:
        if options:
            raise ConfigError(f"drafter 'mtp' has no options; remove {', '.join(sorted(options))}.")
        self._tap = target.num_layers
        self.taps = (self._tap,)
        self._contexts: dict[int, _Context] = {}

    def attach(self, model: Model) -> None:
        self._layer = model.load_next_token_layer()

    @torch.inference_mode()
    def observe(self, sequence: int, start: int, tokens: Sequence[int], taps: Mapping[int, torch.Tensor]) -> None:
        if self._tap not in taps:
            # Restored: there are no hidden states to make rows of, and the context begins anew behind it.
            self._contexts[sequence] = _Context(self._layer, start + len(tokens))
            return
        if not tokens:
            return
        context = self._contexts.setdefault(sequence, _Context(self._layer, start))
        if context.hidden:  # the row of the last final token, which waited for this one
            if context.guessed == tokens[0]:
                context.rows += 1
                context.hidden.clear()
            else:
                context.tokens.append(tokens[0])
        context.guessed = None
        context.tokens += tokens[1:]
        context.hidden.append(taps[self._tap].clone())
        if len(context.tokens) >= WAITING_ROWS:
            hidden = torch.cat(context.hidden)
            context.call(context.tokens, hidden[:-1], context.rows, logits=0)
            context.rows += len(context.tokens)
            context.tokens, context.hidden = [], [hidden[-1:].clone()]

    @torch.inference_mode()
    def propose(self, sequence: int, pending: int, depth: int) -> Draft:
        context = self._contexts.get(sequence)
        if context is None or not context.hidden:
            return Draft()
        hidden = torch.cat(context.hidden)
        output = context.call([*context.tokens, pending], hidden, context.rows, logits=1)
        context.rows += len(context.tokens)
        context.tokens, context.hidden, context.guessed = [], [hidden[-1:].clone()], pending
        drafts = [int(output.logits[0].argmax())]
        while len(drafts) < min(depth, MAX_DEPTH):
            row = context.rows + len(drafts)
            output = context.call(drafts[-1:], output.hidden[-1:], row, logits=1)
            drafts.append(int(output.logits[0].argmax()))
        return Draft(tuple(drafts))

    def forget(self, sequence: int) -> None:
        self._contexts.pop(sequence, None)

    def memory_bytes(self, tokens: int) -> int:
        return tokens * sum(paged.token_bytes for paged in self._layer.paged)
