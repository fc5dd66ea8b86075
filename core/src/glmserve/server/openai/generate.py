"""From a validated body to sequences in the engine, and their outputs back: what chat and completions share."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from fastapi import Request, Response

from glmserve.api import GlmserveError, RequestError, UnavailableError
from glmserve.engine.detokenizer import Detokenizer
from glmserve.engine.request import Output, SamplingParams
from glmserve.engine.request import Request as Sequence_
from glmserve.engine.request import Usage as SequenceUsage

from .. import sse
from ..errors import declared, envelope
from ..limits import MAX_SEQUENCES, completion_room
from ..metrics import SequenceTimer
from ..tokenize import check_token_ids
from .types import CompletionDetails, Generation, PromptDetails, Usage

if TYPE_CHECKING:
    from glmserve.engine.stream import Stream

    from ..app import Serving

log = logging.getLogger("glmserve.server")

T = TypeVar("T")
_MASK = 2**64 - 1
LEAST = -9999.0
"""What JSON says for a log-probability of minus infinity."""
STREAMED: dict[int | str, dict[str, Any]] = {
    **declared(400, 401, 404, 413, 415, 429, 500, 503),
    200: {"content": {"text/event-stream": {}}},
}
"""Answers of a route that can stream, for the API's own description."""


class ModelFault(GlmserveError):
    """The engine gave up on a sequence."""

    code = "model_error"


class Call:
    """The sequences of one HTTP request: `prompts` x `n`, choice i of prompt p being number p * n + i."""

    def __init__(self, request: Request, sequences: Sequence[Sequence_], choices: int) -> None:
        """Admit all sequences, or none. Raises what `Engine.submit` raises."""
        serving: Serving = request.app.state.serving
        self.id = secrets.token_hex(12)
        self.created = int(time.time())
        self.model = serving.name
        self.sequences = sequences
        self.token_text = serving.token_text
        self._choices = choices
        self._request = request
        self._metrics = request.app.state.metrics
        self._timers = [SequenceTimer(self._metrics, time.monotonic()) for _ in sequences]
        self._usages: dict[int, SequenceUsage] = {}
        self._streams: list[Stream] = []
        engine = serving.require_engine()
        try:
            for sequence in sequences:
                self._streams.append(engine.submit(sequence))
        except GlmserveError:
            self.abort()
            raise

    def abort(self) -> None:
        """End what still runs. After the end it does nothing."""
        for stream in self._streams:
            stream.abort()

    async def outputs(self) -> AsyncIterator[tuple[int, Output]]:
        """(number of the sequence, output) as they come. Raises ModelFault or UnavailableError when one fails."""
        coming = {asyncio.ensure_future(anext(stream)): i for i, stream in enumerate(self._streams)}
        try:
            while coming:
                done, _ = await asyncio.wait(coming, return_when=asyncio.FIRST_COMPLETED)
                for future in sorted(done, key=lambda one: coming[one]):
                    index = coming.pop(future)
                    output = future.result()
                    self._timers[index].saw(output)
                    if output.fault:
                        raise UnavailableError(
                            f"The server failed before the reply was complete: {output.fault}. Try again later."
                        )
                    if output.finish_reason == "error":
                        log.error("a request failed: %s", output.error)
                        raise ModelFault("The model failed on this request; the server's log says why.")
                    if output.finish_reason == "abort":
                        raise UnavailableError("The server stopped before the reply was complete. Try again later.")
                    if output.usage is not None:
                        self._usages[index] = output.usage
                    if output.finish_reason is None:
                        coming[asyncio.ensure_future(anext(self._streams[index]))] = index
                    yield index, output
        finally:
            for future in coming:
                future.cancel()

    async def collected(self) -> list[list[Output]]:
        """All outputs of each sequence. Raises as `outputs` does."""
        parts: list[list[Output]] = [[] for _ in self.sequences]
        async for index, output in self.outputs():
            parts[index].append(output)
        return parts

    def usage(self, reasoning_tokens: int = 0) -> Usage:
        """Of the whole call; a prompt counts once, however many choices continue it."""
        firsts = [usage for index, usage in self._usages.items() if index % self._choices == 0]
        prompt = sum(usage.prompt_tokens for usage in firsts)
        completion = sum(usage.completion_tokens for usage in self._usages.values())
        accepted = sum(usage.accepted_tokens for usage in self._usages.values())
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=prompt + completion,
            prompt_tokens_details=PromptDetails(cached_tokens=sum(usage.cached_tokens for usage in firsts)),
            completion_tokens_details=CompletionDetails(
                reasoning_tokens=reasoning_tokens,
                accepted_prediction_tokens=accepted,
                rejected_prediction_tokens=sum(u.drafted_tokens for u in self._usages.values()) - accepted,
            ),
        )

    async def whole(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T | Response:
        """The reply that `make` collects, unless the client leaves first: then everything is aborted."""
        making = asyncio.ensure_future(make())
        leaving = asyncio.ensure_future(sse.until_disconnect(self._request.receive))
        try:
            await asyncio.wait({making, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if making.done():
                return making.result()
            self._metrics.disconnects.inc()
            return Response(status_code=499)  # nobody reads it; the status is for the metrics
        finally:
            self.abort()
            making.cancel()
            leaving.cancel()
            await asyncio.wait({making, leaving})

    def stream(self, chunks: AsyncIterator[Mapping[str, Any]], keep_alive_s: float) -> Response:
        """`chunks` as server-sent events. A failure after the first byte is an event too."""

        async def events() -> AsyncIterator[bytes]:
            try:
                async for chunk in chunks:
                    yield sse.event(chunk)
            except GlmserveError as error:
                yield sse.event(envelope(error.http_status, str(error), code=error.code))
            except Exception:
                log.exception("a stream failed")
                yield sse.event(envelope(500, "The server failed on this request; its log says why."))
            yield sse.DONE

        def close(complete: bool) -> None:
            self.abort()
            if not complete:
                self._metrics.disconnects.inc()

        return sse.EventStream(sse.with_keep_alive(events(), keep_alive_s), close)


def sequences_of(
    serving: Serving,
    body: Generation,
    prompts: Sequence[tuple[int, ...]],
    *,
    salt: bytes,
    max_tokens: int | None,
    default_tokens: int | None,
    logprobs: int | None,
    param: str,
) -> list[Sequence_]:
    """The engine's requests for `prompts` (token ids). `param` names the field that holds the prompt.

    Raises RequestError for what only the model's sizes can tell: context, vocabulary.
    """
    engine = serving.require_engine()
    vocabulary = engine.num_tokens
    choices = body.n or 1
    if len(prompts) * choices > MAX_SEQUENCES:
        raise RequestError(
            f"{len(prompts)} prompts with n={choices} are more than {MAX_SEQUENCES} sequences; send several requests.",
            param=param,
        )
    stop_ids = body.stop_token_ids or []
    check_token_ids(stop_ids, vocabulary, "stop_token_ids")
    bias = _logit_bias(body.logit_bias or {}, vocabulary)
    stops = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    defaults = serving.tokenizer.sampling
    seed = secrets.randbits(64) if body.seed is None else body.seed & _MASK
    sequences = []
    for prompt in prompts:
        if not prompt:
            raise RequestError(f"{param!r} is empty: at least one token is needed.", param=param)
        room = completion_room(len(prompt), max_tokens, default_tokens, engine.max_context, param)
        if body.min_tokens is not None and body.min_tokens > room:
            raise RequestError(f"'min_tokens' is {body.min_tokens}, but at most {room} fit.", param="min_tokens")
        for choice in range(choices):
            sampling = SamplingParams(
                temperature=_or(body.temperature, defaults.temperature),
                top_k=max(_or(body.top_k, defaults.top_k), 0),
                top_p=_or(body.top_p, defaults.top_p),
                min_p=_or(body.min_p, defaults.min_p),
                presence_penalty=_or(body.presence_penalty, 0.0),
                frequency_penalty=_or(body.frequency_penalty, 0.0),
                repetition_penalty=_or(body.repetition_penalty, defaults.repetition_penalty),
                logit_bias=bias,
                seed=choice_seed(seed, choice),
            )
            sequences.append(
                Sequence_(
                    prompt=prompt,
                    max_tokens=room,
                    sampling=sampling,
                    stop_ids=frozenset(stop_ids),
                    ignore_eos=bool(body.ignore_eos),
                    min_tokens=body.min_tokens or 0,
                    logprobs=logprobs,
                    draft=body.draft is not False,
                    text=Detokenizer(serving.tokenizer.tokenizer, stops),
                    salt=salt,
                )
            )
    return sequences


def choice_seed(seed: int, choice: int) -> int:
    """The seed of a choice: the first is the request's own, so that n=1 and n=4 begin alike."""
    if choice == 0:
        return seed
    material = seed.to_bytes(8, "little") + choice.to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(material, digest_size=8).digest(), "little")


def _or(value: Any, default: T) -> T:
    return default if value is None else value


def _logit_bias(given: Mapping[str, float], vocabulary: int) -> dict[int, float]:
    bias = {}
    for key, value in given.items():
        if not (key.isascii() and key.isdigit() and len(key) < 12 and int(key) < vocabulary):
            raise RequestError(
                f"'logit_bias' holds {key[:40]!r}, which is no token id of this model (0 to {vocabulary - 1}).",
                param="logit_bias",
            )
        bias[int(key)] = value
    return bias


def include_usage(body: Generation) -> bool:
    """Raises RequestError for stream_options without a stream."""
    if body.stream_options is None:
        return False
    if not body.stream:
        raise RequestError("'stream_options' needs 'stream': true.", param="stream_options")
    return bool(body.stream_options.include_usage)


def check_extra(
    body: Generation, unsupported: Mapping[str, tuple[Any, ...]], count_unknown: Callable[[int], None]
) -> None:
    """Refuse known but unsupported fields and count unknown ones. `unsupported`: field -> values that ask for nothing.

    Raises RequestError that names the field.
    """
    extra = body.model_extra or {}
    unknown = 0
    for name, value in extra.items():
        if name not in unsupported:
            unknown += 1
            continue
        if value is not None and not any(value == one and type(value) is type(one) for one in unsupported[name]):
            raise RequestError(
                f"{name!r} is not supported by this server with that value; leave it out.",
                param=name,
                code="unsupported_parameter",
            )
    if unknown:
        count_unknown(unknown)
