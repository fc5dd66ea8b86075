"""What of a chat request the template is given: messages, tools and options, or the reason why not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import Field, StrictBool

from glmserve.api import RequestError

from .messages import Message, Strict, for_template, says
from .tools import Tools, tools_of

if TYPE_CHECKING:
    from ..chat_template import ChatTemplate
    from ..parsing.formats import ChatFormat

_OURS = ("messages", "tools", "add_generation_prompt", "bos_token", "eos_token")
"""Variables of a template that are no options."""

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
ToolChoice = Annotated[
    Literal["none", "auto", "required"] | dict[str, Any] | None,
    says("'tool_choice' must be 'none', 'auto', 'required', or an object that names a tool"),
]


class TemplateOptions(Strict):
    """What a chat's prompt depends on besides its messages."""

    tools: list[dict[str, Any]] | None = Field(
        None, description="Functions that the model may call, in the shape of Chat Completions or that of Responses."
    )
    tool_choice: ToolChoice = Field(
        None, description="`auto` if not given. With `none` the model does not see the tools. Others are not supported."
    )
    parallel_tool_calls: StrictBool | None = Field(
        None, description="false: the reply ends with its first call, and what follows is dropped."
    )
    reasoning_effort: Effort | None = Field(
        None,
        description="The model's own default if not given. GLM-5: none to low, medium as high, xhigh as max; `none` "
        "turns thinking off where the template can.",
    )
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="Options of the model's own template, such as clear_thinking."
    )


@dataclass(frozen=True)
class TemplateInput:
    """The arguments of a rendering."""

    messages: Sequence[Mapping[str, Any]]
    tools: Tools
    options: Mapping[str, Any]

    @property
    def size(self) -> int:
        """Characters of the messages, about."""
        return sum(len(str(value)) for message in self.messages for value in message.values())


def template_input(
    messages: Sequence[Message], body: TemplateOptions, template: ChatTemplate, form: ChatFormat
) -> TemplateInput:
    """What the template is given for a request. Raises RequestError that names what this model cannot do."""
    can_call = form.tool_calls and "tools" in template.variables
    tools = tools_of(body.tools or (), body.tool_choice)
    if body.tools and not can_call:
        raise _unsupported("tools", "This model cannot call tools; leave 'tools' out.")
    for i, message in enumerate(messages):
        if message.tool_calls and message.role != "assistant":
            raise RequestError("Only the assistant calls tools.", param=f"messages[{i}].tool_calls")
        if not can_call and (message.tool_calls or message.role == "tool"):
            field = "tool_calls" if message.tool_calls else "role"
            raise _unsupported(f"messages[{i}].{field}", "This model cannot call tools; leave such messages out.")
    return TemplateInput(for_template(messages), tools, _options(body, template, form))


def _options(body: TemplateOptions, template: ChatTemplate, form: ChatFormat) -> dict[str, Any]:
    options = dict(body.chat_template_kwargs or {})
    effort = _effort(body.reasoning_effort, options.pop("reasoning_effort", None))
    can_switch = "enable_thinking" in template.variables
    has_effort = "reasoning_effort" in template.variables
    if has_effort and not can_switch and isinstance(options.get("enable_thinking"), bool):
        # A template without the switch always thinks; the least that it can do stands for off.
        wanted = options.pop("enable_thinking")
        effort = effort if wanted else effort or "none"
    for name in options:
        if name in _OURS or name not in template.variables:
            known = sorted(template.variables - {*_OURS})
            raise _unsupported(
                "chat_template_kwargs",
                f"The model's chat template has no option {name[:40]!r}; "
                f"{'it has ' + ', '.join(known) if known else 'it has none'}.",
            )
    if effort == "none" and can_switch:
        options.setdefault("enable_thinking", False)
    if has_effort:
        if effort is not None:
            options["reasoning_effort"] = _level(effort, template, form)
    elif effort not in (None, "none"):
        raise _unsupported("reasoning_effort", "This model has no reasoning effort; leave 'reasoning_effort' out.")
    return options


def _effort(asked: str | None, option: object) -> str | None:
    """The effort of the request's own field or of its template options; where both name one it must be the same."""
    if option is None or option == asked:
        return asked
    if asked is not None:
        raise RequestError(
            "'reasoning_effort' and that of 'chat_template_kwargs' differ; send only one of them.",
            param="reasoning_effort",
        )
    if not isinstance(option, str) or option not in get_args(Effort):
        raise RequestError(
            f"The reasoning_effort of 'chat_template_kwargs' must be one of {', '.join(get_args(Effort))}.",
            param="chat_template_kwargs",
        )
    return option


def _level(effort: str, template: ChatTemplate, form: ChatFormat) -> str:
    """The word for `effort` that the template knows. GLM-5.2's knows no low, and would take it for max."""
    level = form.efforts.get(effort, effort)
    return "high" if level == "low" and form.efforts and "low" not in template.words else level


def _unsupported(param: str, message: str) -> RequestError:
    return RequestError(message, param=param, code="unsupported_parameter")
