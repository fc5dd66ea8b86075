"""/v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response

from glmserve.api import RequestError
from glmserve.engine.request import TokenLogprob as EngineLogprob

from ..limits import JsonRoute
from ..parsing.deltas import Delta
from ..tokenize import TokenText, encode_chat
from .answer import Answer, chunk_delta, message_of
from .generate import LEAST, STREAMED, Call, check_extra, include_usage, sequences_of
from .models import check_model
from .types import UNSUPPORTED, ChatChoice, ChatLogprobs, ChatReply, ChatRequest, TokenLogprob, TopLogprob, Usage

if TYPE_CHECKING:
    from ..app import Serving

router = APIRouter(prefix="/v1", tags=["openai"], route_class=JsonRoute)


@router.post(
    "/chat/completions",
    response_model=ChatReply,
    responses=STREAMED,
)
async def chat_completions(body: ChatRequest, request: Request) -> ChatReply | Response:
    """Continue a conversation; with `stream`, as server-sent events."""
    serving: Serving = request.app.state.serving
    check_model(serving, body.model)
    check_extra(body, UNSUPPORTED, request.app.state.metrics.unknown_parameters.inc)
    max_tokens = _max_tokens(body)
    wants_usage = include_usage(body)
    if body.top_logprobs and not body.logprobs:
        raise RequestError("'top_logprobs' needs 'logprobs': true.", param="top_logprobs")
    given = serving.template_input(body.messages, body)
    prompt, ids = await encode_chat(serving, given)
    sequences = sequences_of(
        serving,
        body,
        [ids],
        salt=request.scope.get("glmserve.salt", b""),
        max_tokens=max_tokens,
        default_tokens=None,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        param="messages",
    )
    parallel = body.parallel_tool_calls is not False
    answers = [Answer(serving.format, prompt, given.tools.parameters, parallel) for _ in sequences]
    call = Call(request, sequences, len(sequences))
    if body.stream:
        return call.stream(_chunks(call, answers, bool(body.logprobs), wants_usage), serving.settings.keep_alive_s)
    return await call.whole(lambda: _reply(call, answers, bool(body.logprobs)))


def _max_tokens(body: ChatRequest) -> int | None:
    if body.max_tokens is None or body.max_completion_tokens is None:
        return body.max_completion_tokens or body.max_tokens
    if body.max_tokens != body.max_completion_tokens:
        raise RequestError(
            "'max_tokens' and 'max_completion_tokens' differ; send only 'max_completion_tokens'.",
            param="max_completion_tokens",
        )
    return body.max_tokens


async def _reply(call: Call, answers: Sequence[Answer], logprobs: bool) -> ChatReply:
    deltas: list[list[Delta]] = [[] for _ in answers]
    scores: list[list[EngineLogprob]] = [[] for _ in answers]
    async for index, output in call.outputs():
        deltas[index] += answers[index].push(output)
        scores[index] += output.logprobs
    choices = [
        ChatChoice(
            index=index,
            message=message_of(deltas[index]),
            logprobs=_logprobs(scores[index], call.token_text) if logprobs else None,
            finish_reason=answer.finish_reason,
        )
        for index, answer in enumerate(answers)
    ]
    return ChatReply(
        id=f"chatcmpl-{call.id}", created=call.created, model=call.model, choices=choices, usage=_usage(call, answers)
    )


async def _chunks(
    call: Call, answers: Sequence[Answer], logprobs: bool, wants_usage: bool
) -> AsyncIterator[dict[str, Any]]:
    """The role, then thoughts, text and calls as they come, then an empty delta with the reason, for each choice; then
    the usage if it was asked for."""
    head = {
        "id": f"chatcmpl-{call.id}",
        "object": "chat.completion.chunk",
        "created": call.created,
        "model": call.model,
    }
    nothing: dict[str, Any] = {"usage": None} if wants_usage else {}

    def chunk(index: int, delta: dict[str, Any], finish: str | None = None, scores: Any = None) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": scores, "finish_reason": finish}
        return {**head, "choices": [choice], **nothing}

    for index in range(len(call.sequences)):
        yield chunk(index, {"role": "assistant", "content": ""})
    async for index, output in call.outputs():
        deltas = [chunk_delta(delta) for delta in answers[index].push(output)]
        scores = _logprobs(output.logprobs, call.token_text).model_dump() if logprobs and output.logprobs else None
        if scores is not None and not deltas:
            deltas = [{"content": ""}]  # the text of these tokens is held back or is a tag; their scores are due
        for delta in deltas:
            yield chunk(index, delta, scores=scores)
            scores = None
        if output.finish_reason is not None:
            yield chunk(index, {}, finish=answers[index].finish_reason)
    if wants_usage:
        yield {**head, "choices": [], "usage": _usage(call, answers).model_dump()}


def _usage(call: Call, answers: Sequence[Answer]) -> Usage:
    return call.usage(sum(answer.reasoning_tokens for answer in answers))


def _logprobs(tokens: Sequence[EngineLogprob], text: TokenText) -> ChatLogprobs:
    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        raw = text.raw(token_id)
        return {"token": raw.decode("utf-8", "replace"), "logprob": max(logprob, LEAST), "bytes": list(raw)}

    return ChatLogprobs(
        content=[
            TokenLogprob(
                **entry(one.token_id, one.logprob),
                top_logprobs=[TopLogprob(**entry(token, logprob)) for token, logprob in one.top],
            )
            for one in tokens
        ]
    )
