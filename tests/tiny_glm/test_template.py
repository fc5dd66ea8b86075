"""The chat template: GLM-5.3's structure, rendered by the server's own sandbox rules."""

from __future__ import annotations

from typing import Any

import jinja2
import pytest
from recipe.corpus import Template

TOOL = {
    "type": "function",
    "function": {"strict": True, "name": "f", "description": "Größe", "parameters": {"type": "object"}},
}
START = "[gMASK]<sop><|system|>Reasoning Effort: "
TOOLS = (
    '<|system|>\n# Tools\n\nYou can call these functions:\n<tools>\n{"name": "f", "description": "Größe", '
    '"parameters": {"type": "object"}}\n</tools>\n\nA call is written <tool_call>name<arg_key>key</arg_key>'
    "<arg_value>value</arg_value></tool_call>"
)
Message = dict[str, Any]


def render(*messages: Message, effort: str = "max", tools: tuple[Message, ...] = (), **more: Any) -> str:
    options = {"messages": list(messages), "tools": list(tools), "reasoning_effort": effort, **more}
    return Template()._template.render(**options)


def user(text: Any = "Hi") -> Message:
    return {"role": "user", "content": text}


def assistant(content: str | None, reasoning: str | None = None, *calls: Message) -> Message:
    return {"role": "assistant", "content": content, "reasoning_content": reasoning, "tool_calls": list(calls)}


def call(name: str, arguments: object, id: str = "") -> Message:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_a_prompt_ends_where_the_assistant_begins_to_think() -> None:
    assert render(user(), add_generation_prompt=True) == f"{START}Max<|user|>Hi<|assistant|><think>"


@pytest.mark.parametrize(
    ("effort", "said"), [("low", "Low"), ("high", "High"), ("max", "Max"), ("medium", "Max"), ("none", "Max")]
)
def test_only_low_and_high_are_honoured(effort: str, said: str) -> None:
    assert render(user(), effort=effort) == f"{START}{said}<|user|>Hi"


def test_an_effort_that_is_not_given_is_max() -> None:
    assert Template()._template.render(messages=[user()]) == f"{START}Max<|user|>Hi"


def test_tools_come_before_the_messages_and_without_the_keys_that_are_not_the_models() -> None:
    assert render(user(), tools=(TOOL,)) == f"{START}Max{TOOLS}<|user|>Hi"
    flat = {"type": "function", "defer_loading": True, **TOOL["function"]}
    assert render(user(), tools=(flat,)) == render(user(), tools=(TOOL,))


def test_calls_have_text_as_it_is_and_other_values_as_json() -> None:
    calls = call("f", {"a": "x y", "b": 2, "c": [True, None]}), call("g", {})
    assert render(user(), assistant(None, "r", *calls)) == (
        f"{START}Max<|user|>Hi<|assistant|><think>r</think><tool_call>f<arg_key>a</arg_key><arg_value>x y</arg_value>"
        "<arg_key>b</arg_key><arg_value>2</arg_value><arg_key>c</arg_key><arg_value>[true, null]</arg_value>"
        "</tool_call><tool_call>g</tool_call>"
    )


def test_arguments_that_are_still_text_are_refused() -> None:
    with pytest.raises(jinja2.TemplateError, match="have to be an object"):
        render(user(), assistant("", "", call("f", '{"a": 1}')))


def test_results_stand_behind_one_observation_in_the_order_of_the_calls() -> None:
    asked = assistant("", "", call("f", {}, "1"), call("g", {}, "2"))
    results = [{"role": "tool", "tool_call_id": id, "content": f"of {id}"} for id in ("2", "1")]
    assert render(user(), asked, *results).endswith(
        "<|observation|><tool_response>of 1</tool_response><tool_response>of 2</tool_response>"
    )
    unnamed = [{"role": "tool", "content": text} for text in "ba"]
    assert render(user(), asked, *unnamed).endswith(
        "<|observation|><tool_response>b</tool_response><tool_response>a</tool_response>"
    )


def test_a_second_round_of_results_stands_behind_its_own_call() -> None:
    rounds = [
        message
        for id in ("1", "2")
        for message in (assistant("", "", call("f", {}, id)), {"role": "tool", "tool_call_id": id, "content": id})
    ]
    rendered = render(user(), *rounds)
    assert rendered.count("<|observation|>") == 2
    assert rendered.endswith("</tool_call><|observation|><tool_response>2</tool_response>")


def test_earlier_reasoning_stays_unless_it_is_to_be_cleared() -> None:
    messages = (user("a"), assistant(" b ", " one "), user("c"), assistant("d", "two"))
    kept = "<|user|>a<|assistant|><think>one</think>b<|user|>c<|assistant|><think>two</think>d"
    assert render(*messages) == f"{START}Max{kept}"
    assert render(*messages, clear_thinking=True) == f"{START}Max{kept.replace('one', '')}"


def test_content_may_be_missing_or_in_parts() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert render(user(parts), assistant(None)) == f"{START}Max<|user|>ab<|assistant|><think></think>"
    with pytest.raises(jinja2.TemplateError, match="image_url"):
        render(user([{"type": "image_url"}]))


def test_an_unknown_role_is_refused() -> None:
    with pytest.raises(jinja2.TemplateError, match="no role narrator"):
        render({"role": "narrator", "content": ""})
