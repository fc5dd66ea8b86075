"""The engine: takes requests, runs steps in a thread of its own, delivers tokens.

A turn: take in submissions and aborts, plan a step, publish the plan, execute it, sample and verify, deliver.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any

from glmserve.api import (
    PrefixCache,
    QueueFullError,
    RankError,
    RequestError,
    UnavailableError,
)

from .commit import Committer
from .kv import PagePool
from .ranks import Ranks
from .request import EngineStatus, FinishReason, Output, Request, SamplingParams
from .scheduler import EngineOptions, Scheduler
from .sequence import Sequence
from .stream import Stream

log = logging.getLogger("glmserve.engine")

IDLE_BEAT_S = 0.5
"""An idle loop wakes this often to show that it is alive."""
FAILED_STEPS = 3
"""Steps that fail in a row before the engine gives up; one bad step only ends the sequences in it."""
STOP_S = 1.0
"""When the engine is stopped, a step gets so long to end before it no longer waits for other ranks."""


class Engine:
    """One model with its pages, scheduler, drafter and prefix cache. `submit` from an event loop, everything else from
    any thread."""

    def __init__(
        self,
        ranks: Ranks,
        eos_ids: frozenset[int],
        options: EngineOptions,
        cache: type[PrefixCache],
        cache_options: Mapping[str, Any],
        fingerprint: str,
        exact: bool,
        num_tokens: int | None = None,
    ) -> None:
        """`ranks` have the pages of `options`. `exact`: the arithmetic of all of them is row-invariant. `num_tokens`:
        ids from here on are rows that only pad the model's vocabulary, and are never chosen; None when there are none.
        """
        info = ranks.worker.model.info
        self.info = info
        self.num_tokens = info.vocab_size if num_tokens is None else min(num_tokens, info.vocab_size)
        self.options = options
        self.max_context = options.max_context
        self.exact = exact
        self._eos_ids = frozenset(token for token in eos_ids if token < self.num_tokens)
        self._ranks = ranks
        self._pool = PagePool(options.num_pages, options.page_tokens)
        self._cache = cache(ranks.worker.memory, fingerprint, cache_options)
        self._scheduler = Scheduler(self._pool, self._cache, options)
        self._committer = Committer(self._ranks, self._cache, self.num_tokens, options)
        self._ids = itertools.count(1)
        self._sequences: dict[int, Sequence] = {}
        self._inbox: deque[Sequence] = deque()
        self._wake = threading.Condition()
        self._closed = False
        """The thread takes nothing in any more."""
        self._stopping = threading.Lock()
        self._thread: threading.Thread | None = None
        self._state: Any = "starting"
        self._reason = "the model is being warmed up"
        self._fault = ""
        self._steps = 0
        self._beat = time.monotonic()
        self._finished: Counter[str] = Counter()
        self._finished_tokens: Counter[str] = Counter()

    def start(self) -> None:
        """Start the thread, and make one real completion before anything else is admitted.

        Raises UnavailableError when that completion fails.
        """
        self._thread = threading.Thread(target=self._run, name="glmserve-engine", daemon=True)
        self._thread.start()
        done = threading.Event()
        last: list[Output] = []

        def deliver(output: Output) -> None:
            last.append(output)
            if output.finish_reason is not None:
                done.set()

        request = Request(prompt=(0,) * 3, max_tokens=2, sampling=SamplingParams(temperature=0), ignore_eos=True)
        self._enqueue(request, deliver)
        done.wait()
        if last[-1].finish_reason == "error":
            self.stop()
            raise UnavailableError(f"The model cannot produce a token: {last[-1].error}.")
        with self._wake:
            if self._state != "starting":
                raise UnavailableError("The server was stopped while the model was being warmed up.")
            self._state, self._reason = "ready", ""

    def submit(self, request: Request) -> Stream:
        """Admit a request to the queue. Raises RequestError, QueueFullError or UnavailableError at once."""
        if self._state != "ready":
            raise self._unavailable()
        if not request.prompt:
            raise RequestError("The prompt is empty: at least one token is needed.", param="prompt")
        if request.max_tokens < 1:
            raise RequestError("At least one token must be asked for.", param="max_tokens")
        total = len(request.prompt) + request.max_tokens
        if total > self.max_context:
            raise RequestError(
                f"This model's maximum context length is {self.max_context} tokens. However, you requested {total} "
                f"tokens ({len(request.prompt)} in the prompt, {request.max_tokens} in the completion). "
                "Please shorten the prompt or the completion.",
                code="context_length_exceeded",
            )
        with self._wake:
            # What the slots have room for does not wait, though a turn may pass before it is taken in.
            waiting = len(self._inbox) + len(self._sequences) - self.options.max_sequences
        if waiting >= self.options.max_queue:
            raise QueueFullError(f"All slots are taken and {waiting} requests wait already. Try again in a second.")
        aborts: list[Callable[[], None]] = []
        stream = Stream(lambda: aborts[0]())
        sequence = self._enqueue(request, stream.deliver)
        aborts.append(lambda: self._abort(sequence))
        return stream

    def _enqueue(self, request: Request, deliver: Callable[[Output], None]) -> Sequence:
        ends = request.stop_ids if request.ignore_eos else request.stop_ids | self._eos_ids
        sequence = Sequence(next(self._ids), request, deliver, ends)
        with self._wake:
            if self._closed:  # it ended between the check and now, and nobody would ever answer
                raise self._unavailable()
            self._inbox.append(sequence)
            self._wake.notify()
        return sequence

    def _unavailable(self) -> UnavailableError:
        return UnavailableError(f"The server is not ready: {self._reason}. Try again later.")

    def _abort(self, sequence: Sequence) -> None:
        with self._wake:
            sequence.aborted = True
            self._wake.notify()

    def status(self) -> EngineStatus:
        with self._wake:  # a sequence counts either as running or as finished, so that totals never fall
            totals = self._finished_tokens.copy()
            for sequence in self._sequences.values():
                totals.update(_token_counts(sequence))
        token_at = self._committer.last_token_at
        return EngineStatus(
            state=self._state,
            reason=self._reason,
            waiting=len(self._inbox) + len(self._scheduler.waiting),
            running=len(self._scheduler.running),
            pages_total=self._pool.num_pages,
            pages_free=self._pool.num_free,
            steps=self._steps,
            seconds_since_step=time.monotonic() - self._beat,
            seconds_since_token=None if token_at is None else time.monotonic() - token_at,
            prompt_tokens=totals["prompt"],
            generated_tokens=totals["generated"],
            cached_tokens=totals["cached"],
            drafted_tokens=totals["drafted"],
            accepted_tokens=totals["accepted"],
            preemptions=self._scheduler.preemptions,
            finished=dict(self._finished),
            exact=self.exact,
            max_context=self.max_context,
            ranks=self._ranks.status(),
        )

    def drain(self) -> None:
        """Refuse new work and let the running streams finish."""
        with self._wake:
            if self._state == "ready":
                self._state, self._reason = "draining", "it is shutting down"

    def idle(self) -> bool:
        return not self._inbox and not self._sequences

    def stop(self) -> None:
        """Abort what is left and join the thread. Twice is safe."""
        with self._wake:
            if self._state != "failed":
                self._state, self._reason = "stopped", "it has stopped"
            self._wake.notify()
        with self._stopping:
            if self._thread is not None:
                self._thread.join(STOP_S)
                if self._thread.is_alive():
                    self._ranks.abandon("the engine is stopped")
                    self._thread.join()
                self._thread = None
                self._cache.close()
                self._ranks.close()

    def check_integrity(self) -> list[str]:
        """Faults in the bookkeeping, one sentence each. For an engine that is idle or stopped."""
        return self._scheduler.check_integrity()

    def _run(self) -> None:
        try:
            self._loop()
        except BaseException as error:  # a silent end of this thread would leave every stream waiting
            log.exception("the engine's thread broke")
            with self._wake:
                self._state, self._reason = "failed", f"its thread ended with {type(error).__name__}: {error}"
        with self._wake:
            self._closed = True
        self._take_in()
        for sequence in list(self._sequences.values()):
            reason: FinishReason = "error" if self._state == "failed" else "abort"
            self._end(
                sequence, Output(finish_reason=reason, error=self._reason, fault=self._fault, usage=sequence.usage())
            )

    def _loop(self) -> None:
        failures = 0
        while self._state not in ("stopped", "failed"):
            self._take_in()
            try:
                worked = self._turn()
                failures = 0 if worked else failures
                if not worked:
                    self._ranks.beat()
            except RankError as error:  # the group cannot go on, so nobody may be sent here any more
                if self._state != "stopped":
                    log.error("%s", error)
                    self._state, self._reason = "failed", str(error).rstrip(".")
                    self._fault = self._reason
                break
            except Exception as error:  # the loop must outlive any fault of a model or plugin
                log.exception("a step failed")
                failures += 1
                self._fail_running(f"{type(error).__name__}: {error}")
                worked = True
                if failures >= FAILED_STEPS:
                    self._state, self._reason = "failed", f"{failures} steps in a row failed, the last with {error}"
            self._beat = time.monotonic()
            if not worked:
                with self._wake:
                    if not self._inbox and not any(s.aborted for s in self._sequences.values()):
                        self._wake.wait(IDLE_BEAT_S)

    def _take_in(self) -> None:
        with self._wake:
            arrived = list(self._inbox)
            for sequence in arrived:
                self._sequences[sequence.id] = sequence
                self._scheduler.waiting.append(sequence)
            self._inbox.clear()
        for sequence in [s for s in self._sequences.values() if s.aborted]:
            self._end(sequence, Output(finish_reason="abort", usage=sequence.usage()))

    def _turn(self) -> bool:
        plan = self._scheduler.plan(self._committer.propose, self._committer.forget)
        if not plan.rows:
            return False
        results = self._ranks.execute(plan)
        self._steps += 1
        for rows, result in zip(plan.rows, results, strict=True):
            sequence = self._sequences[rows.sequence]
            try:
                output = self._committer.commit(sequence, rows, result)
            except Exception as error:  # of one request's parameters or text; its batch mates are not to blame
                log.exception("a request failed")
                output = Output(finish_reason="error", error=f"{type(error).__name__}: {error}", usage=sequence.usage())
            if output is None:
                continue
            if output.finish_reason is not None:
                self._end(sequence, output)
            else:
                sequence.deliver(output)
        return True

    def _fail_running(self, error: str) -> None:
        for sequence in list(self._scheduler.running):
            self._end(sequence, Output(finish_reason="error", error=error, usage=sequence.usage()))

    def _end(self, sequence: Sequence, output: Output) -> None:
        self._scheduler.release(sequence)
        self._committer.forget(sequence)
        with self._wake:
            self._finished_tokens.update(_token_counts(sequence))
            del self._sequences[sequence.id]
        self._finished[str(output.finish_reason)] += 1
        sequence.deliver(output)


def _token_counts(sequence: Sequence) -> dict[str, int]:
    usage = sequence.usage()
    return {
        "prompt": usage.prompt_tokens,
        "generated": usage.completion_tokens,
        "cached": usage.cached_tokens,
        "drafted": usage.drafted_tokens,
        "accepted": usage.accepted_tokens,
    }
