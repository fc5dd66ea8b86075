"""One choice of a chat: the engine's outputs to deltas, in the same way for a stream and for a whole reply."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from glmserve.engine.request import Output

from ..parsing.deltas import CallArguments, CallStart, Content, Delta, Reasoning
from ..parsing.formats import ChatFormat
from ..parsing.reasoning import ReasoningTokens, start_of
from ..parsing.reply import ReplyParser
from .types import ChatReplyMessage, ReplyFunction, ReplyToolCall


class Answer:
    """A choice on its way. `prompt` is the rendered one: it tells whether the model is thinking already."""

    def __init__(
        self, form: ChatFormat, prompt: str, parameters: Mapping[str, Mapping[str, Any]], parallel: bool
    ) -> None:
        """`parameters`: tool name -> JSON Schema, of the tools that may be called."""
        thinks = form.think is not None
        start = start_of(prompt) if thinks else "content"
        self._parser = ReplyParser(start, parameters if form.tool_calls else {}, parallel)
        ends = form.reasoning_ends if parameters else form.reasoning_ends[:1]
        self._counter = ReasoningTokens(start, form.think, ends) if form.think is not None else None
        self._reasoned = False
        self.finish_reason: Literal["stop", "length", "tool_calls"] = "stop"
        """How it ended, after the last output."""

    def push(self, output: Output) -> list[Delta]:
        """What `output` adds to the reply."""
        deltas = self._parser.push(output.text)
        if self._counter is not None:
            self._counter.push(output.token_ids)
        if output.finish_reason is not None:
            deltas += self._parser.finish()
            cut = output.finish_reason == "length"
            self.finish_reason = "tool_calls" if self._parser.called(cut) else "length" if cut else "stop"
        self._reasoned = self._reasoned or any(isinstance(delta, Reasoning) for delta in deltas)
        return deltas

    @property
    def reasoning_tokens(self) -> int:
        return self._counter.count if self._counter is not None and self._reasoned else 0


def chunk_delta(delta: Delta) -> dict[str, Any]:
    """`delta` as the `delta` of a chunk. Only the first one of a call has its id, type and name."""
    match delta:
        case Reasoning(text):
            return {"reasoning_content": text}
        case Content(text):
            return {"content": text}
        case CallStart(index, name):
            function = {"name": name, "arguments": ""}
            return {"tool_calls": [{"index": index, "id": call_id(), "type": "function", "function": function}]}
        case CallArguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}


def message_of(deltas: Sequence[Delta]) -> ChatReplyMessage:
    """The whole message that `deltas` make up."""
    names = [delta.name for delta in deltas if isinstance(delta, CallStart)]
    arguments = ["" for _ in names]
    for delta in deltas:
        if isinstance(delta, CallArguments):
            arguments[delta.index] += delta.text
    calls = [
        ReplyToolCall(id=call_id(), function=ReplyFunction(name=name, arguments=text))
        for name, text in zip(names, arguments, strict=True)
    ]
    content = "".join(delta.text for delta in deltas if isinstance(delta, Content))
    return ChatReplyMessage(
        content=content or (None if calls else ""),
        reasoning_content="".join(delta.text for delta in deltas if isinstance(delta, Reasoning)) or None,
        tool_calls=calls or None,
    )


def call_id() -> str:
    return f"call_{secrets.token_hex(12)}"
