"""Which rows run in the next step.

Fairness: every decoding sequence gets its row in every step. While any decodes, one prefill chunk goes along, taken in
turn from the prompts in progress, so a long prompt neither freezes the streams nor keeps a short prompt waiting.

Exactness: a chunk ends at the next multiple of `prefill_chunk` or at the prompt's end, whatever the load, the budget or
a cache hit; so the calls that compute a prompt are a function of the prompt alone.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from glmserve.api import ConfigError, Draft, PrefixCache

from .kv import PagePool
from .plan import Rows, StepPlan
from .sequence import Sequence

log = logging.getLogger("glmserve.engine")

REPLAY_ROWS = 16
"""Decode rows per call when a preempted sequence's generated tokens are computed again."""


@dataclass(frozen=True)
class EngineOptions:
    """Sizes in tokens unless their name says otherwise."""

    max_context: int
    kv_tokens: int
    page_tokens: int = 32
    prefill_chunk: int = 128
    step_tokens: int = 512
    max_sequences: int = 16
    """Sequences that hold pages at once."""
    max_queue: int = 64
    """Sequences that may wait beyond `max_sequences`; one more is refused."""
    draft_depth: int = 4

    @property
    def num_pages(self) -> int:
        """Pages that hold `kv_tokens`."""
        return -(-self.kv_tokens // self.page_tokens)

    def __post_init__(self) -> None:
        if self.prefill_chunk % self.page_tokens:
            raise ConfigError(
                f"engine.prefill_chunk ({self.prefill_chunk}) must be a multiple of engine.page_tokens "
                f"({self.page_tokens}), so that a chunk fills whole pages."
            )
        if self.kv_tokens < self.max_context:
            raise ConfigError(
                f"engine.kv_tokens ({self.kv_tokens}) is less than engine.max_context ({self.max_context}): "
                "one full conversation would not fit. Raise the first or lower the second."
            )


class Scheduler:
    """Owns the waiting and running sequences and their pages. Used by the engine's thread only."""

    def __init__(self, pool: PagePool, cache: PrefixCache, options: EngineOptions) -> None:
        self._pool = pool
        self._cache = cache
        self._options = options
        self._step = 0
        self.waiting: deque[Sequence] = deque()
        self.running: deque[Sequence] = deque()
        """In order of admission: the last one is preempted first."""
        self._turns: deque[Sequence] = deque()
        """Prompts in progress, the next one to get a chunk first."""
        self.preemptions = 0
        self._ended: list[int] = []
        """Sequences whose pages were given back, to be told with the next step."""

    def release(self, sequence: Sequence) -> None:
        """The sequence ended: its pages are free at once."""
        for queue in (self.waiting, self.running, self._turns):
            if sequence in queue:
                queue.remove(sequence)
        self._give_back(sequence)

    def _give_back(self, sequence: Sequence) -> None:
        self._pool.release(sequence.pages)
        if sequence.told_pages:
            sequence.told_pages = 0
            self._ended.append(sequence.id)

    def plan(self, propose: Callable[[Sequence, int], Draft], forget: Callable[[Sequence], None]) -> StepPlan:
        """The next step; empty when nothing can run. `propose(sequence, depth)` asks the drafter."""
        self._admit()
        rows = self._decode_rows(propose, forget)
        rows += self._chunks(self._options.step_tokens - sum(len(r.tokens) for r in rows), bool(rows))
        if not rows:
            return StepPlan(self._step, ())
        self._step += 1
        ended, self._ended = tuple(self._ended), []
        return StepPlan(self._step, tuple(rows), ended)

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self._options.max_sequences:
            sequence = self.waiting[0]
            # One page of head-room for each running sequence, or the newcomer would be preempted at once.
            needed = self._pool.pages_for(len(sequence.tokens)) + len(self.running)
            if needed > self._pool.num_free and self.running:
                return
            self.waiting.popleft()
            self._pool.grow(sequence.pages, self._pool.pages_for(len(sequence.tokens)))
            self._restore(sequence)
            self.running.append(sequence)
            self._turns.append(sequence)

    def _restore(self, sequence: Sequence) -> None:
        """Fill pages from the prefix cache, down to the chunk grid: then the rest is computed by the calls that a
        cold prompt would get. The last token is always computed, for its logits."""
        prompt = sequence.tokens[: sequence.prompt_length]
        try:
            match = self._cache.match(prompt, sequence.request.salt)
            usable = self._on_grid(max(0, min(match.length, len(prompt) - 1)))
            if usable:
                pages = sequence.pages[: usable // self._pool.page_tokens]
                sequence.computed = self._on_grid(max(0, min(self._cache.restore(match, pages), usable)))
        except Exception:  # costs the time to compute the prompt, nothing else
            log.exception("cache %r failed; the prompt is computed instead", self._cache.name)
        if not sequence.preempted:  # its own pages, found again after that, were not cached for the client
            sequence.cached = sequence.computed

    def _on_grid(self, length: int) -> int:
        return length - length % self._options.prefill_chunk

    def _decode_rows(self, propose: Callable[[Sequence, int], Draft], forget: Callable[[Sequence], None]) -> list[Rows]:
        rows: list[Rows] = []
        for sequence in list(self.running):
            if sequence.prefilling or sequence not in self.running:
                continue
            known = sequence.tokens[sequence.computed : sequence.computed + REPLAY_ROWS]
            if not self._make_room(sequence, sequence.computed + len(known), forget):
                continue
            pending = sequence.computed + len(known) == len(sequence.tokens)
            drafts: tuple[int, ...] = ()
            if pending and sequence.request.draft and not sequence.undraftable:
                depth = min(self._options.draft_depth, sequence.room - 1)
                drafts = propose(sequence, depth).tokens if depth > 0 else ()
                wanted = self._pool.pages_for(len(sequence.tokens) + len(drafts))
                if not self._pool.grow(sequence.pages, wanted):  # a guess is no reason to preempt anyone
                    drafts = ()
            rows.append(self._rows(sequence, (*known, *drafts), logits=1 + len(drafts) if pending else 0, chunk=False))
        return rows

    def _rows(self, sequence: Sequence, tokens: tuple[int, ...], logits: int, chunk: bool) -> Rows:
        """Rows from where the sequence stands, with the pages that it gained since its last ones."""
        first, sequence.told_pages = sequence.told_pages, len(sequence.pages)
        return Rows(sequence.id, sequence.computed, tokens, first, tuple(sequence.pages[first:]), logits, chunk)

    def _make_room(self, sequence: Sequence, tokens: int, forget: Callable[[Sequence], None]) -> bool:
        """Pages for `tokens`, preempting the sequences admitted last. False when `sequence` itself had to go."""
        while not self._pool.grow(sequence.pages, self._pool.pages_for(tokens)):
            victim = self.running[-1]
            self._preempt(victim)
            forget(victim)
            if victim is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        if sequence in self._turns:
            self._turns.remove(sequence)
        self._give_back(sequence)
        sequence.computed = 0
        sequence.preempted = True
        self.waiting.appendleft(sequence)
        self.preemptions += 1

    def _chunks(self, budget: int, decoding: bool) -> list[Rows]:
        rows: list[Rows] = []
        for _ in range(len(self._turns)):
            sequence = self._turns.popleft()
            if not sequence.prefilling:
                continue
            end = min(self._on_grid(sequence.computed) + self._options.prefill_chunk, sequence.prompt_length)
            if rows and (decoding or end - sequence.computed > budget):
                self._turns.appendleft(sequence)
                break
            budget -= end - sequence.computed
            wants_token = end == sequence.prompt_length and sequence.generated == 0
            rows.append(
                self._rows(
                    sequence, tuple(sequence.tokens[sequence.computed : end]), logits=int(wants_token), chunk=True
                )
            )
            self._turns.append(sequence)
        return rows

    def check_integrity(self) -> list[str]:
        """Faults in the bookkeeping, one sentence each."""
        faults = self._pool.check_integrity(s.pages for s in self.running)
        faults += [f"waiting sequence {s.id} holds pages" for s in self.waiting if s.pages]
        return faults
