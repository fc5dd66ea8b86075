"""GLM-5.3's chat through the official client: thinking, tools, efforts, history; streamed and whole alike."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from glmserve.server.app import ServerSettings
from glmserve.store.generation import SamplingDefaults
from openai import BadRequestError, OpenAI

from . import glm
from .conftest import Live

USER: Any = [{"role": "user", "content": "How warm is it in Paris?"}]
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Tells the weather überall.",
            "strict": True,
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "now"}},
]
FLAT: Any = [{"type": "function", **tool["function"]} for tool in TOOLS]
"""The same in the shape of the Responses route."""
CALL = (
    "<tool_call>weather<arg_key>city</arg_key><arg_value>Paris</arg_value>"
    "<arg_key>days</arg_key><arg_value>2</arg_value></tool_call>"
)
REPLY = f"I should look. 🤔</think>One moment.{CALL}<tool_call>now</tool_call>"


def client_of(live: Live) -> OpenAI:
    return OpenAI(base_url=live.url + "/v1", api_key="none", max_retries=0, timeout=20)


def whole(live: Live, messages: Any = USER, **extra: Any) -> Any:
    return client_of(live).chat.completions.create(**{"model": "default", "messages": messages} | extra)


def streamed(live: Live, messages: Any = USER, **extra: Any) -> dict[str, Any]:
    """What a client puts together from a stream."""
    found: dict[str, Any] = {"content": "", "reasoning_content": "", "calls": [], "finish": [], "usage": None}
    options = {"stream": True, "stream_options": {"include_usage": True}}
    for chunk in client_of(live).chat.completions.create(
        **{"model": "default", "messages": messages} | options | extra
    ):
        found["usage"] = chunk.usage
        for choice in chunk.choices:
            delta = choice.delta.model_dump(exclude_unset=True)
            assert not (delta and choice.finish_reason)
            found["content"] += delta.get("content") or ""
            found["reasoning_content"] += delta.get("reasoning_content") or ""
            assert delta.get("tool_calls") != []
            for call in delta.get("tool_calls", ()):
                if call["index"] == len(found["calls"]):
                    assert set(call) == {"index", "id", "type", "function"}
                    assert call["function"]["arguments"] == ""
                    found["calls"].append({"id": call["id"], **call["function"]})
                else:
                    assert set(call) == {"index", "function"}
                    assert set(call["function"]) == {"arguments"}
                    found["calls"][call["index"]]["arguments"] += call["function"]["arguments"]
            found["finish"] += [choice.finish_reason] if choice.finish_reason else []
    return found


def prompt_of(live: Live) -> str:
    return glm.text_of(live.engine.requests[-1].prompt)  # type: ignore[union-attr]


@pytest.fixture(scope="module")
def talk() -> Iterator[Live]:
    """A model that answers every question with the same thought and word."""
    live = Live(glm.engine("Hm.</think>Warm."), ServerSettings(), (), "glm", glm.BUNDLE)
    yield live
    live.close()


@pytest.fixture
def serve(start: Callable[..., Live]) -> Callable[..., Live]:
    def begin(reply: str, step: int = 1, template: str = glm.TEMPLATE) -> Live:
        return start(glm.engine(reply, step), tokenizer=glm.bundle(template))

    return begin


@pytest.mark.parametrize("step", [1, 2, 5, 64])
def test_pitfall_25_thinking_and_calls_are_the_same_streamed_and_whole_whatever_a_step_brings(serve, step):
    live = serve(REPLY, step)
    reply = whole(live, tools=TOOLS)
    message = reply.choices[0].message
    assert (message.content, message.reasoning_content) == ("One moment.", "I should look. 🤔")
    calls = [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls]
    assert calls == [("weather", {"city": "Paris", "days": 2}), ("now", {})]
    assert len({call.id for call in message.tool_calls}) == 2
    assert reply.choices[0].finish_reason == "tool_calls"
    assert reply.usage.completion_tokens_details.reasoning_tokens == len(glm.ids("I should look. 🤔"))
    parts = streamed(live, tools=TOOLS)
    assert (parts["content"], parts["reasoning_content"]) == (message.content, message.reasoning_content)
    assert [(call["name"], json.loads(call["arguments"])) for call in parts["calls"]] == calls
    assert len({call["id"] for call in parts["calls"]}) == 2
    assert parts["finish"] == ["tool_calls"]
    assert parts["usage"].completion_tokens_details == reply.usage.completion_tokens_details


@pytest.mark.parametrize("step", [1, 64])
def test_pitfall_24_a_call_without_arguments_reaches_the_client(serve, step):
    live = serve("</think><tool_call>now</tool_call>", step)
    message = whole(live, tools=TOOLS).choices[0].message
    assert [(call.function.name, call.function.arguments) for call in message.tool_calls] == [("now", "{}")]
    assert (message.content, message.reasoning_content) == (None, None)
    parts = streamed(live, tools=TOOLS)
    assert [(call["name"], call["arguments"]) for call in parts["calls"]] == [("now", "{}")]


def test_pitfall_23_a_call_within_the_thinking_is_a_call(serve):
    message = whole(serve(f"I look it up {CALL}"), tools=TOOLS).choices[0].message
    assert message.reasoning_content == "I look it up "
    assert message.tool_calls[0].function.name == "weather"


def test_pitfall_26_both_shapes_of_tools_are_taken_and_give_one_prompt(serve):
    live = serve(REPLY)
    prompts = []
    for tools in (TOOLS, FLAT):
        message = whole(live, tools=tools).choices[0].message
        assert json.loads(message.tool_calls[0].function.arguments) == {"city": "Paris", "days": 2}
        prompts.append(prompt_of(live))
    assert prompts[0] == prompts[1]
    assert '{"name": "weather", "description": "Tells the weather überall.", "parameters": {' in prompts[0]
    assert '\n{"name": "now"}\n' in prompts[0]


def test_pitfall_27_no_content_is_no_text_and_never_none(talk):
    history = [*USER, {"role": "assistant", "content": None}, {"role": "user", "content": None}]
    assert whole(talk, history).choices[0].message.content == "Warm."
    assert prompt_of(talk).endswith("<|assistant|><think></think><|user|><|assistant|><think>")


def test_the_prompt_of_the_reference(talk):
    whole(talk, [{"role": "user", "content": "Answer with one word: What is two plus two?"}])
    assert prompt_of(talk) == (
        "[gMASK]<sop><|system|>Reasoning Effort: Max<|user|>Answer with one word: What is two plus two?"
        "<|assistant|><think>"
    )


EFFORTS = {
    None: "Max",
    "none": "Low",
    "minimal": "Low",
    "low": "Low",
    "medium": "High",
    "high": "High",
    "xhigh": "Max",
    "max": "Max",
}


@pytest.mark.parametrize(("effort", "level"), EFFORTS.items())
def test_pitfall_28_every_effort_means_what_it_says(talk, effort, level):
    for body in ({"reasoning_effort": effort}, {"chat_template_kwargs": {"reasoning_effort": effort}}):
        assert talk.chat(**body).status_code == 200
        assert f"<|system|>Reasoning Effort: {level}<|user|>" in prompt_of(talk)


@pytest.mark.parametrize(("effort", "level"), [("low", "High"), ("high", "High"), ("max", "Max"), (None, "Max")])
def test_pitfall_28_a_template_without_low_takes_the_least_that_it_knows(serve, effort, level):
    live = serve("Hm.</think>Warm.", template=glm.SWITCHED)
    live.chat(reasoning_effort=effort)
    assert prompt_of(live).startswith(f"[gMASK]<sop><|system|>Reasoning Effort: {level}<|user|>")


@pytest.mark.parametrize("body", [{"reasoning_effort": "none"}, {"chat_template_kwargs": {"enable_thinking": False}}])
def test_pitfall_22_the_prompt_tells_whether_the_model_thinks_and_not_the_request(serve, body):
    """One template has a switch and ends its prompt in a closed thought; the other always opens one."""
    always = serve("Hm.</think>Warm.")
    message = always.chat(**body).json()["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == ("Warm.", "Hm.")
    assert prompt_of(always).startswith("[gMASK]<sop><|system|>Reasoning Effort: Low")
    switched = serve("Warm.", template=glm.SWITCHED)
    reply = switched.chat(**body).json()
    assert prompt_of(switched).endswith("<|assistant|><think></think>")
    assert (
        reply["choices"][0]["message"] | {"content": "Warm.", "reasoning_content": None}
        == (reply["choices"][0]["message"])
    )
    assert reply["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0
    assert switched.chat(chat_template_kwargs={"enable_thinking": True}).status_code == 200
    assert prompt_of(switched).endswith("<|assistant|><think>")


HISTORY: Any = [
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "first", "reasoning_content": "old thought"},
    {"role": "user", "content": "two"},
    {
        "role": "assistant",
        "content": None,
        "reasoning": "new thought",
        "tool_calls": [
            {
                "id": "a",
                "type": "function",
                "function": {"name": "weather", "arguments": '{"city": "Rom", "days": 3, "more": [true, null, "ü"]}'},
            },
            {"id": "b", "type": "function", "function": {"name": "now", "arguments": ""}},
        ],
    },
    {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "warm"}]},
    {"role": "tool", "tool_call_id": "b", "content": "noon"},
]
TURN = (
    "new thought</think><tool_call>weather<arg_key>city</arg_key><arg_value>Rom</arg_value><arg_key>days</arg_key>"
    '<arg_value>3</arg_value><arg_key>more</arg_key><arg_value>[true, null, "ü"]</arg_value></tool_call>'
    "<tool_call>now</tool_call><|observation|><tool_response>warm</tool_response><tool_response>noon</tool_response>"
    "<|assistant|><think>"
)


def test_calls_results_and_thoughts_of_the_history_reach_the_template(talk):
    assert whole(talk, HISTORY, tools=TOOLS).choices[0].message.content == "Warm."
    assert prompt_of(talk).endswith(
        f"<|user|>one<|assistant|><think>old thought</think>first<|user|>two<|assistant|><think>{TURN}"
    )


def test_pitfall_29_thoughts_of_earlier_turns_are_kept_unless_the_request_clears_them(talk):
    """By default, as the template says, a turn only adds to the prompt, so that a prefix cache can serve it."""
    first = HISTORY[:1]
    whole(talk, first)
    before = prompt_of(talk)
    answer = {"role": "assistant", "content": "Warm.", "reasoning_content": "Hm."}
    whole(talk, [*first, answer, {"role": "user", "content": "two"}])
    assert prompt_of(talk).startswith(before + "Hm.</think>Warm.")
    whole(talk, HISTORY, extra_body={"chat_template_kwargs": {"clear_thinking": True}})
    assert prompt_of(talk).endswith(f"<|assistant|><think></think>first<|user|>two<|assistant|><think>{TURN}")


def test_a_reply_can_be_sent_back_as_the_client_holds_it(serve):
    live = serve(REPLY)
    message = whole(live, tools=TOOLS).choices[0].message
    results = [{"role": "tool", "tool_call_id": call.id, "content": "ok"} for call in message.tool_calls]
    whole(live, [*USER, message, *results], tools=TOOLS)
    assert f"<|assistant|><think>{REPLY}<|observation|><tool_response>ok" in prompt_of(live)


def test_pitfall_32_thoughts_stay_out_of_the_content_at_every_turn(serve):
    live = serve(REPLY)
    messages: list[Any] = [*USER]
    for _ in range(4):
        message = whole(live, messages, tools=TOOLS).choices[0].message
        assert (message.content, message.reasoning_content) == ("One moment.", "I should look. 🤔")
        assert len(message.tool_calls) == 2
        messages += [message, {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "ok"}]


def test_a_reply_cut_off_while_thinking_says_so_and_gives_the_thought(serve):
    live = serve("I think and think and")
    reply = whole(live, max_tokens=7)
    message = reply.choices[0].message
    assert (message.content, message.reasoning_content) == ("", "I think")
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage.completion_tokens_details.reasoning_tokens == 7


def test_a_call_that_is_cut_off_is_not_a_finished_one(serve):
    live = serve(REPLY)
    tokens = len(glm.ids(REPLY.partition("Paris")[0])) + 3
    choice = whole(live, tools=TOOLS, max_tokens=tokens).choices[0]
    assert choice.finish_reason == "length"
    assert choice.message.tool_calls[0].function.arguments == '{"city": "Par'
    parts = streamed(live, tools=TOOLS, max_tokens=tokens)
    assert parts["calls"][0]["arguments"] == '{"city": "Par'
    assert parts["finish"] == ["length"]


def test_without_tools_what_looks_like_a_call_is_text(serve):
    live = serve(f"Hm.</think>Like this: {CALL}\n")
    for body in ({}, {"tools": TOOLS, "tool_choice": "none"}, {"tools": []}):
        choice = whole(live, **body).choices[0]
        assert choice.message.content == f"Like this: {CALL}\n"
        assert (choice.message.tool_calls, choice.finish_reason) == (None, "stop")
        assert "# Tools" not in prompt_of(live)


def test_one_call_where_they_must_not_be_parallel(serve):
    live = serve(REPLY)
    choice = whole(live, tools=TOOLS, parallel_tool_calls=False).choices[0]
    assert [call.function.name for call in choice.message.tool_calls] == ["weather"]
    assert choice.finish_reason == "tool_calls"
    assert len(streamed(live, tools=TOOLS, parallel_tool_calls=False)["calls"]) == 1


def test_choices_have_states_and_call_ids_of_their_own(serve):
    reply = whole(serve(REPLY, 3), tools=TOOLS, n=3)
    ids = [call.id for choice in reply.choices for call in choice.message.tool_calls]
    assert len(set(ids)) == 6
    thinking = len(glm.ids("I should look. 🤔"))
    assert reply.usage.completion_tokens_details.reasoning_tokens == 3 * thinking


@pytest.mark.parametrize("step", [1, 64])
def test_scores_of_all_tokens_come_also_with_thoughts_and_calls(serve, step):
    live = serve(REPLY, step)
    entries = whole(live, tools=TOOLS, logprobs=True).choices[0].logprobs.content
    assert b"".join(bytes(entry.bytes) for entry in entries).decode() == REPLY
    chunks = live.stream(tools=TOOLS, logprobs=True)
    scores = [choice["logprobs"] for chunk in chunks for choice in chunk["choices"] if choice["logprobs"]]
    assert [entry["token"] for score in scores for entry in score["content"]] == [entry.token for entry in entries]


def test_tokenize_counts_the_prompt_that_a_chat_would_have(talk):
    body = {"messages": HISTORY, "tools": TOOLS, "reasoning_effort": "low"}
    reply = talk.client.post("/tokenize", json=body).json()
    assert talk.chat(**body).status_code == 200
    assert tuple(reply["tokens"]) == talk.engine.requests[-1].prompt


FUNCTION = {"name": "f"}
BAD: list[tuple[dict[str, Any], str]] = [
    ({"tools": TOOLS, "tool_choice": "required"}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "now"}}}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": "maybe"}, "tool_choice"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"function": FUNCTION}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ({"tools": [{"type": "function", "function": "f"}]}, "tools[0].function"),
    ({"tools": [{"type": "function", "function": {"name": "f f"}}]}, "tools[0].function.name"),
    ({"tools": [{"type": "function", "function": {"name": "<tool_call>"}}]}, "tools[0].function.name"),
    ({"tools": [{"type": "function", "function": {**FUNCTION, "parameters": []}}]}, "tools[0].function.parameters"),
    ({"tools": [{"type": "function", "name": "f", "description": 5}]}, "tools[0].description"),
    ({"tools": [{"type": "function", "name": "f"}] * 2}, "tools[1]"),
    ({"tools": [{"type": "function", "name": f"f{i}"} for i in range(129)]}, "tools"),
    ({"tools": ["f"]}, "tools[0]"),
    ({"reasoning_effort": "extreme"}, "reasoning_effort"),
    ({"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"}}, "reasoning_effort"),
    ({"chat_template_kwargs": {"reasoning_effort": "extreme"}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"clear_thoughts": True}}, "chat_template_kwargs"),
    ({"messages": [{"role": "user", "tool_calls": HISTORY[3]["tool_calls"]}]}, "messages[0].tool_calls"),
    ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0].function"),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": '{"a": '}}]}]},
        "messages[0].tool_calls[0].function.arguments",
    ),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[]"}}]}]},
        "messages[0].tool_calls[0].function.arguments",
    ),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 5}}]}]},
        "messages[0].tool_calls[0].function.arguments",
    ),
]


@pytest.mark.parametrize(("body", "param"), BAD, ids=[f"{param}-{i}" for i, (_, param) in enumerate(BAD)])
def test_what_is_refused_is_named(talk, body, param):
    messages = body.get("messages", USER)
    with pytest.raises(BadRequestError) as caught:
        whole(talk, messages, extra_body={key: value for key, value in body.items() if key != "messages"})
    assert caught.value.param == param
    message = caught.value.body["message"]
    assert message.endswith(".")
    assert "Traceback" not in message


def test_sampling_defaults_are_the_models_and_a_request_overrides_them(start):
    recommended = SamplingDefaults(temperature=0.6, top_p=0.95, top_k=40)
    live = start(glm.engine("ok"), tokenizer=replace(glm.BUNDLE, sampling=recommended))
    live.chat()
    used = live.engine.requests[-1].sampling
    assert (used.temperature, used.top_p, used.top_k, used.min_p) == (0.6, 0.95, 40, 0.0)
    live.complete(temperature=0, top_p=1, top_k=-1)
    used = live.engine.requests[-1].sampling
    assert (used.temperature, used.top_p, used.top_k) == (0, 1, 0)


def test_a_choice_that_must_be_forced_names_what_is_missing(talk):
    with pytest.raises(BadRequestError, match="structured output"):
        whole(talk, tools=TOOLS, tool_choice="required")


def test_tags_are_text_to_a_model_that_has_no_such_tokens(start):
    live = start(glm.FakeEngine("a<think>b</think>c"), tokenizer=glm.without_tags())
    message = live.chat().json()["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == ("a<think>b</think>c", None)
    assert live.chat(tools=TOOLS).json()["error"]["param"] == "tools"
