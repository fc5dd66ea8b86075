"""Turns of a conversation, as clients send them and as templates take them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictStr, ValidationError, WrapValidator
from pydantic_core import PydanticCustomError

from glmserve.api import RequestError


class Strict(BaseModel):
    """A request."""

    model_config = ConfigDict(strict=True, extra="allow")


def says(sentence: str) -> WrapValidator:
    """For unions, whose own message would list each branch."""

    def validate(value: Any, handler: Any) -> Any:
        try:
            return handler(value)
        except ValidationError:
            raise PydanticCustomError("sentence", sentence) from None

    return WrapValidator(validate)


class TextPart(Strict):
    type: Literal["text"]
    text: StrictStr


Role = Literal["system", "developer", "user", "assistant", "tool"]
Content = Annotated[
    StrictStr | list[TextPart] | None,
    says("A message's content must be a string, null, or a list of text parts; other media are not supported"),
]
Arguments = Annotated[
    StrictStr | dict[str, Any],
    says("A call's arguments must be the text of a JSON object, or the object itself"),
]


class FunctionCall(Strict):
    name: StrictStr
    arguments: Arguments


class ToolCall(Strict):
    """A call that the assistant made."""

    id: StrictStr | None = None
    type: Literal["function"] = "function"
    function: FunctionCall


class Message(Strict):
    """One turn. `developer` is another word for `system`."""

    role: Role
    content: Content = None
    name: StrictStr | None = None
    reasoning_content: StrictStr | None = Field(None, description="Of the assistant: what it thought.")
    reasoning: StrictStr | None = Field(None, description="Another word for reasoning_content.")
    tool_calls: list[ToolCall] | None = Field(None, description="Of the assistant: the tools that it called.")
    tool_call_id: StrictStr | None = Field(None, description="Of a tool: the call that this is the result of.")


def for_template(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as templates take them: plain strings, known roles, arguments of calls as objects.

    Raises RequestError for arguments that are no JSON object.
    """
    return [_plain(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _plain(message: Message, path: str) -> dict[str, Any]:
    optional = {
        "name": message.name,
        "reasoning_content": message.reasoning if message.reasoning_content is None else message.reasoning_content,
        "tool_call_id": message.tool_call_id,
        "tool_calls": [_call(call, f"{path}.tool_calls[{i}]") for i, call in enumerate(message.tool_calls or ())],
    }
    return {
        "role": "system" if message.role == "developer" else message.role,
        "content": _text(message.content),
        **{key: value for key, value in optional.items() if value is not None and value != []},
    }


def _text(content: str | list[TextPart] | None) -> str:
    if isinstance(content, list):
        return "\n".join(part.text for part in content)
    return content or ""


def _call(call: ToolCall, path: str) -> dict[str, Any]:
    arguments = call.function.arguments
    if isinstance(arguments, str):
        arguments = _object(arguments, f"{path}.function.arguments")
    function = {"name": call.function.name, "arguments": arguments}
    return {**({} if call.id is None else {"id": call.id}), "type": "function", "function": function}


def _object(text: str, path: str) -> dict[str, Any]:
    """Templates write arguments one by one, so they have to be read. Nothing is how some clients write no arguments."""
    try:
        value = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise RequestError(
            f"{path!r} is not the text of a JSON object; a call that was cut off cannot be continued, so leave it out.",
            param=path,
            code="invalid_value",
        )
    return value
