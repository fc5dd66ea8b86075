"""An engine without a model, for the wire: it repeats a text or tokens, and can be slow, stuck or broken at will.

What the real engine does is tested with the real engine; here the questions are what goes over the socket, and when.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

from glmserve.api import QueueFullError, RequestError, UnavailableError
from glmserve.engine.ranks import RankStatus
from glmserve.engine.request import EngineStatus, Output, Request, TokenLogprob, Usage
from glmserve.engine.stream import Stream
from glmserve.server.tokenize import _BYTES
from glmserve.store.tokenizer import TokenizerBundle
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

EOS = 256
TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'user' and m['content'] == 'refuse' %}"
    "{{ raise_exception('no refuse') }}{% endif %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def byte_tokenizer() -> Tokenizer:
    """One token a byte, id = byte; 256 is <eos>."""
    tokenizer = Tokenizer(models.BPE(vocab=dict(_BYTES), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<eos>", special=True)])
    return tokenizer


def bundle(template: str | None = TEMPLATE) -> TokenizerBundle:
    return TokenizerBundle(byte_tokenizer(), template, None, "<eos>", (EOS,), False, 257)


class FakeEngine:
    """Obeys the engine's interface. `reply` is what it says, then end-of-sequence; `step` tokens at a time."""

    def __init__(
        self, reply: str | Sequence[int] = "Hello!", delay: float = 0.0, step: int = 1, max_queue: int = 64
    ) -> None:
        self.max_context = 512
        self.exact = True
        self.info = SimpleNamespace(vocab_size=257)
        self.num_tokens = 257
        self.eos_ids = frozenset({EOS})
        self.reply: Sequence[int] = reply.encode() if isinstance(reply, str) else reply
        self.delay = delay
        self.step = step
        self.max_queue = max_queue
        self.fail_after: int | None = None
        self.requests: list[Request] = []
        self.go = threading.Event()
        """Cleared: every sequence waits, as behind a long prefill or in a stuck engine."""
        self.go.set()
        self.state = "ready"
        self.seconds_since_step = 0.1
        self.finished: Counter[str] = Counter()
        self._running: set[int] = set()
        self._stopped = threading.Event()
        self._lock = threading.Lock()

    def start(self) -> None:
        pass

    def submit(self, request: Request) -> Stream:
        if self.state != "ready":
            raise UnavailableError("The server is not ready: it is shutting down. Try again later.")
        if not request.prompt or len(request.prompt) + request.max_tokens > self.max_context:
            raise RequestError("too long", code="context_length_exceeded")
        if len(self._running) >= self.max_queue:
            raise QueueFullError(f"{self.max_queue} requests wait already. Try again in a second.")
        aborted = threading.Event()
        stream = Stream(aborted.set)
        self.requests.append(request)
        with self._lock:
            self._running.add(id(stream))
        threading.Thread(target=self._run, args=(request, stream, aborted), daemon=True).start()
        return stream

    def _run(self, request: Request, stream: Stream, aborted: threading.Event) -> None:
        ends = request.stop_ids | (frozenset() if request.ignore_eos else self.eos_ids)
        script = [*self.reply, EOS] * (1 + request.max_tokens // (len(self.reply) + 1))
        made = 0
        while True:
            while not self.go.wait(0.01) and not aborted.is_set() and not self._stopped.is_set():
                pass
            time.sleep(self.delay)
            output = Output()
            if aborted.is_set() or self._stopped.is_set():
                output = Output(finish_reason="abort")
            elif self.fail_after is not None and made >= self.fail_after:
                output = Output(finish_reason="error", error="the arithmetic broke down")
            for token in script[made : made + self.step] if output.finish_reason is None else ():
                made += 1
                output = self._add(request, output, token, ends, made)
                if output.finish_reason is not None:
                    break
            if output.finish_reason is not None:
                output = replace(output, usage=Usage(len(request.prompt), made, 3, 4, 1))
                with self._lock:
                    self._running.discard(id(stream))
                    self.finished[output.finish_reason] += 1
            stream.deliver(output)
            if output.finish_reason is not None:
                return

    @staticmethod
    def _add(request: Request, output: Output, token: int, ends: frozenset[int], made: int) -> Output:
        if token in ends:
            text = request.text.finish() if request.text else ""
            return replace(output, text=output.text + text, finish_reason="stop")
        text = request.text.push(token) if request.text else ""
        finish = "stop" if request.text and request.text.stopped else "length" if made == request.max_tokens else None
        if finish == "length" and request.text:
            text += request.text.finish()
        scores = output.logprobs
        if request.logprobs is not None:
            tops = tuple((other, -0.5 - other) for other in range(request.logprobs))
            scores = (*scores, TokenLogprob(token, float("-inf"), tops))
        return replace(
            output,
            token_ids=(*output.token_ids, token),
            text=output.text + text,
            logprobs=scores,
            finish_reason=finish,
        )

    def status(self) -> EngineStatus:
        return EngineStatus(
            state=self.state,  # type: ignore[arg-type]
            reason="it broke" if self.state == "failed" else "",
            waiting=0,
            running=len(self._running),
            pages_total=16,
            pages_free=16,
            steps=1,
            seconds_since_step=self.seconds_since_step,
            seconds_since_token=None,
            prompt_tokens=0,
            generated_tokens=0,
            cached_tokens=0,
            drafted_tokens=0,
            accepted_tokens=0,
            preemptions=0,
            finished=dict(self.finished),
            exact=True,
            max_context=self.max_context,
            ranks=(RankStatus(0, 1, 0, 2**20, 0.0), RankStatus(1, 1, 0, 2**20, 0.25)),
        )

    def drain(self) -> None:
        self.state = "draining"

    def idle(self) -> bool:
        return not self._running

    def stop(self) -> None:
        self.state = "stopped"
        self._stopped.set()
