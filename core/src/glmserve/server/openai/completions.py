"""/v1/completions: the older route, for plain text and token ids."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response

from glmserve.api import RequestError
from glmserve.engine.request import TokenLogprob as EngineLogprob

from ..limits import MAX_SEQUENCES, JsonRoute
from ..tokenize import TokenText, check_token_ids, encode_text
from .generate import LEAST, STREAMED, Call, check_extra, include_usage, sequences_of
from .models import check_model
from .types import CHAT_ONLY, UNSUPPORTED, CompletionReply, CompletionRequest, TextChoice, TextLogprobs

if TYPE_CHECKING:
    from ..app import Serving

router = APIRouter(prefix="/v1", tags=["openai"], route_class=JsonRoute)

DEFAULT_TOKENS = 16


@router.post(
    "/completions",
    response_model=CompletionReply,
    responses=STREAMED,
)
async def completions(body: CompletionRequest, request: Request) -> CompletionReply | Response:
    """Continue a text; with `stream`, as server-sent events."""
    serving: Serving = request.app.state.serving
    check_model(serving, body.model)
    choices = body.n or 1
    unsupported = {**UNSUPPORTED, **CHAT_ONLY, "best_of": (1, choices)}
    check_extra(body, unsupported, request.app.state.metrics.unknown_parameters.inc)
    wants_usage = include_usage(body)
    if body.echo and body.logprobs is not None:
        raise RequestError(
            "'echo' with 'logprobs' is not supported; leave one of them out.",
            param="echo",
            code="unsupported_parameter",
        )
    prompts = await _prompts(serving, body)
    sequences = sequences_of(
        serving,
        body,
        prompts,
        salt=request.scope.get("glmserve.salt", b""),
        max_tokens=body.max_tokens,
        default_tokens=DEFAULT_TOKENS,
        logprobs=body.logprobs,
        param="prompt",
    )
    echoes = [""] * len(sequences)
    if body.echo:
        texts = _echoes(serving, body, prompts)
        echoes = [text for text in texts for _ in range(choices)]
    call = Call(request, sequences, choices)
    logprobs = body.logprobs is not None
    if body.stream:
        return call.stream(_chunks(call, echoes, logprobs, wants_usage), serving.settings.keep_alive_s)
    return await call.whole(lambda: _reply(call, echoes, logprobs))


async def _prompts(serving: Serving, body: CompletionRequest) -> list[tuple[int, ...]]:
    vocabulary = serving.require_engine().num_tokens
    given = body.prompt if isinstance(body.prompt, list) and not isinstance(body.prompt[0], int) else [body.prompt]
    if len(given) > MAX_SEQUENCES:
        raise RequestError(f"There are more than {MAX_SEQUENCES} prompts; send several requests.", param="prompt")
    prompts = []
    for prompt in given:
        if isinstance(prompt, str):
            prompts.append(await encode_text(serving, prompt))
        else:
            check_token_ids(prompt, vocabulary, "prompt")
            prompts.append(tuple(prompt))
    return prompts


def _echoes(serving: Serving, body: CompletionRequest, prompts: Sequence[tuple[int, ...]]) -> list[str]:
    if isinstance(body.prompt, str):
        return [body.prompt]
    tokenizer = serving.tokenizer.tokenizer
    given: list[Any] = body.prompt if not isinstance(body.prompt[0], int) else [body.prompt]
    return [
        one if isinstance(one, str) else tokenizer.decode(list(ids), skip_special_tokens=False)
        for one, ids in zip(given, prompts, strict=True)
    ]


async def _reply(call: Call, echoes: Sequence[str], logprobs: bool) -> CompletionReply:
    choices = [
        TextChoice(
            index=index,
            text=echoes[index] + "".join(output.text for output in parts),
            logprobs=_logprobs([one for part in parts for one in part.logprobs], call.token_text, 0)
            if logprobs
            else None,
            finish_reason="stop" if parts[-1].finish_reason == "stop" else "length",
        )
        for index, parts in enumerate(await call.collected())
    ]
    return CompletionReply(
        id=f"cmpl-{call.id}", created=call.created, model=call.model, choices=choices, usage=call.usage()
    )


async def _chunks(
    call: Call, echoes: Sequence[str], logprobs: bool, wants_usage: bool
) -> AsyncIterator[dict[str, Any]]:
    head = {"id": f"cmpl-{call.id}", "object": "text_completion", "created": call.created, "model": call.model}
    nothing: dict[str, Any] = {"usage": None} if wants_usage else {}
    offsets = [0] * len(call.sequences)

    def chunk(index: int, text: str, finish: str | None = None, scores: Any = None) -> dict[str, Any]:
        choice = {"index": index, "text": text, "logprobs": scores, "finish_reason": finish}
        return {**head, "choices": [choice], **nothing}

    for index, echo in enumerate(echoes):
        if echo:
            yield chunk(index, echo)
    async for index, output in call.outputs():
        scores = None
        if logprobs and output.logprobs:
            scores = _logprobs(output.logprobs, call.token_text, offsets[index])
            offsets[index] += sum(len(token) for token in scores.tokens)
        if output.text or scores is not None:
            yield chunk(index, output.text, scores=None if scores is None else scores.model_dump())
        if output.finish_reason is not None:
            yield chunk(index, "", finish=output.finish_reason)
    if wants_usage:
        yield {**head, "choices": [], "usage": call.usage().model_dump()}


def _logprobs(tokens: Sequence[EngineLogprob], text: TokenText, offset: int) -> TextLogprobs:
    """The older format: parallel lists. `offset`: characters before the first of `tokens`."""
    names = [text.text(one.token_id) for one in tokens]
    offsets = []
    for name in names:
        offsets.append(offset)
        offset += len(name)
    return TextLogprobs(
        tokens=names,
        token_logprobs=[max(one.logprob, LEAST) for one in tokens],
        top_logprobs=[
            {text.text(token): max(logprob, LEAST) for token, logprob in ((one.token_id, one.logprob), *one.top)}
            for one in tokens
        ],
        text_offset=offsets,
    )
