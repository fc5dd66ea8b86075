"""After a step: sample, verify drafts, advance the sequence, tell drafter and prefix cache what became final."""

from __future__ import annotations

import logging
import time

import numpy as np
import numpy.typing as npt

from glmserve.api import Draft, PrefixCache, RankError

from .plan import Rows
from .ranks import Ranks
from .request import FinishReason, Output, TokenLogprob
from .runner import RowsResult
from .sampling import NotFiniteError, logprob, sample
from .scheduler import EngineOptions
from .sequence import Sequence
from .speculation import verify

log = logging.getLogger("glmserve.engine")


class Committer:
    """Turns the logits of one sequence's rows into its next output."""

    def __init__(self, ranks: Ranks, cache: PrefixCache, num_tokens: int, options: EngineOptions) -> None:
        self._ranks = ranks
        self._cache = cache
        self._num_tokens = num_tokens
        self._options = options
        self.last_token_at: float | None = None
        """time.monotonic() of the last token of any request."""

    def propose(self, sequence: Sequence, depth: int) -> Draft:
        """The drafter's guess, cut at the first id that is no token. One that raises costs speed, not the stream."""
        try:
            tokens = self._ranks.propose(sequence.id, sequence.tokens[-1], depth).tokens[:depth]
        except RankError:
            raise
        except Exception:
            log.exception("the drafter failed; this step goes without it")
            return Draft()
        legal: list[int] = []
        for token in tokens:
            if not (isinstance(token, int) and 0 <= token < self._num_tokens):
                break
            legal.append(token)
        return Draft(tuple(legal))

    def forget(self, sequence: Sequence) -> None:
        sequence.observed = 0
        sequence.undraftable = False
        self._forget(sequence)

    def _forget(self, sequence: Sequence) -> None:
        try:
            self._ranks.forget(sequence.id)
        except Exception:
            log.exception("the drafter failed to forget")

    def commit(self, sequence: Sequence, rows: Rows, result: RowsResult) -> Output | None:
        """Advance `sequence` past `rows`. None when the step gave it no token."""
        if not rows.logits:
            self._advance(sequence, rows, len(rows.tokens))
            return None
        drafts = rows.tokens[len(rows.tokens) - rows.logits + 1 :]
        # Rows past the last token pad the vocabulary to a round size; what they hold is nobody's logit.
        logits = result.logits[:, : self._num_tokens].numpy()
        before = len(sequence.tokens)
        text: list[str] = []
        logprobs: list[TokenLogprob] = []
        finish: FinishReason | None = None

        def next_token(i: int) -> int | None:
            nonlocal finish
            if finish is not None:
                return None
            token = self._sample(sequence, logits[i])
            if sequence.request.logprobs is not None:
                logprobs.append(logprob(logits[i], token, sequence.request.logprobs))
            sequence.append(token)
            finish = self._ending(sequence, token, text)
            return token

        try:
            tokens, accepted = verify(drafts, next_token)
        except NotFiniteError as error:
            return Output(finish_reason="error", error=str(error), usage=sequence.usage())
        self.last_token_at = time.monotonic()
        sequence.drafted += len(drafts)
        sequence.accepted += accepted
        self._advance(sequence, rows, before + len(tokens) - 1 - rows.start)
        if finish is not None and sequence.request.text is not None:
            text.append(sequence.request.text.finish())
        shown = tokens[:-1] if finish == "stop" and tokens[-1] in sequence.ends else tokens
        return Output(
            token_ids=tuple(shown),
            text="".join(text),
            logprobs=tuple(logprobs[: len(shown)]),
            finish_reason=finish,
            usage=sequence.usage() if finish is not None else None,
        )

    def _sample(self, sequence: Sequence, logits: npt.NDArray[np.float32]) -> int:
        request = sequence.request
        return sample(
            logits,
            request.sampling,
            position=len(sequence.tokens),
            prompt=sequence.prompt_ids,
            generated=sequence.counts,
            banned=sequence.ends if sequence.generated < request.min_tokens else (),
        )

    def _ending(self, sequence: Sequence, token: int, text: list[str]) -> FinishReason | None:
        if token in sequence.ends:
            return "stop"
        detokenizer = sequence.request.text
        if detokenizer is not None:
            text.append(detokenizer.push(token))
            if detokenizer.stopped:
                return "stop"
        return "length" if sequence.room == 0 else None

    def _advance(self, sequence: Sequence, rows: Rows, count: int) -> None:
        """The first `count` rows are final: their inputs are the sequence's own tokens."""
        if sequence.observed < rows.start:  # restored from the cache
            self._observe(sequence, sequence.observed, rows.start)
        self._observe(sequence, rows.start, rows.start + count)
        sequence.computed = rows.start + count
        if rows.chunk and sequence.computed % self._options.prefill_chunk == 0:
            # Only whole chunks are offered: a page that a shorter call filled may differ in its last bits.
            pages = sequence.pages[: sequence.computed // self._options.page_tokens]
            try:
                self._cache.store(sequence.tokens[: sequence.computed], sequence.request.salt, pages)
            except Exception:
                log.exception("cache %r failed to store; the prompt is not remembered", self._cache.name)

    def _observe(self, sequence: Sequence, start: int, end: int) -> None:
        sequence.observed = end
        if sequence.undraftable:
            return
        try:
            self._ranks.observe(sequence.id, start, sequence.tokens[start:end])
        except Exception:
            log.exception("the drafter failed to observe; this sequence goes on without it")
            sequence.undraftable = True
            self._forget(sequence)
