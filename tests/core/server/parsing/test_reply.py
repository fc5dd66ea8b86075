"""Replies in GLM's format: what is thought, said and called, however the text is cut."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from glmserve.server.parsing.deltas import CallArguments, CallStart, Content, Delta, Reasoning, joined
from glmserve.server.parsing.reasoning import ReasoningTokens, start_of
from glmserve.server.parsing.reply import ReplyParser
from hypothesis import given, settings
from hypothesis import strategies as st

TOOLS: Mapping[str, Any] = {
    "f": {
        "type": "object",
        "properties": {"s": {"type": "string"}, "n": {"type": "integer"}, "o": {"type": "object"}, "a": {}},
    },
    "g": {},
}
TAGS = [
    *("<think>", "</think>", "<tool_call>", "</tool_call>"),
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<", "</", "<tool_c", "</arg_value"),
]
START = st.sampled_from(["reasoning", "content", "undecided"])


def parse(pieces: Sequence[str], start: Any = "content", tools: Any = TOOLS, parallel: bool = True) -> list[Delta]:
    parser = ReplyParser(start, tools, parallel)
    return joined([delta for piece in pieces for delta in parser.push(piece)] + parser.finish())


def call(name: str, **arguments: str) -> str:
    inner = "".join(f"<arg_key>{k}</arg_key><arg_value>{v}</arg_value>" for k, v in arguments.items())
    return f"<tool_call>{name}{inner}</tool_call>"


def sound(deltas: Sequence[Delta]) -> list[tuple[str, Any]]:
    """(name, arguments) of the calls, each announced before its arguments; None for arguments that were cut off."""
    names = [delta.name for delta in deltas if isinstance(delta, CallStart)]
    assert [delta.index for delta in deltas if isinstance(delta, CallStart)] == list(range(len(names)))
    texts = ["" for _ in names]
    seen = 0
    for delta in deltas:
        if isinstance(delta, CallStart):
            seen += 1
        if isinstance(delta, CallArguments):
            assert delta.index == seen - 1, "arguments of another call than the last"
            texts[delta.index] += delta.text
    return [(name, whole(text)) for name, text in zip(names, texts, strict=True)]


def whole(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def said(deltas: Sequence[Delta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, Content))


def thought(deltas: Sequence[Delta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, Reasoning))


texts = st.lists(
    st.one_of(
        st.sampled_from([*TAGS, "f", "g", "s", "n", " ", "\n", "5", '{"k": [1]}', call("f", s="x", n="3"), call("g")]),
        st.text(max_size=5),
    ),
    max_size=14,
).map("".join)


@settings(max_examples=400, deadline=None)
@given(texts, START, st.booleans(), st.booleans(), st.data())
def test_pitfall_25_any_cutting_of_a_text_gives_the_same_deltas(
    text: str, start: str, tools: bool, parallel: bool, data: st.DataObject
) -> None:
    known = TOOLS if tools else None
    expected = parse([text], start, known, parallel)
    assert parse(list(text), start, known, parallel) == expected
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[i:j] for i, j in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert parse(pieces, start, known, parallel) == expected
    sound(expected)


@settings(max_examples=200, deadline=None)
@given(texts, START)
def test_without_tools_every_character_comes_out_but_the_tags_of_thinking(text: str, start: str) -> None:
    deltas = parse([text], start, None)
    assert sound(deltas) == []
    out = [delta.text for delta in deltas if isinstance(delta, Reasoning | Content)]
    if start == "content":
        assert "".join(out) == text
    elif start == "reasoning":
        assert "</think>".join([thought(deltas), said(deltas)]) in (text, text + "</think>")
    elif thought(deltas):
        assert text.lstrip().startswith("<think>" + thought(deltas))


@settings(max_examples=200, deadline=None)
@given(texts, st.booleans())
def test_with_tools_nothing_is_lost_where_nothing_is_called(text: str, parallel: bool) -> None:
    deltas = parse([text], "content", TOOLS, parallel)
    if not sound(deltas):
        assert said(deltas) == text


@settings(max_examples=200, deadline=None)
@given(texts)
def test_a_parser_never_lags_behind_by_more_than_a_tag_or_a_name(text: str) -> None:
    """What is held back outside of calls is white space, the beginning of a tag, or a call without its name."""
    parser = ReplyParser("content", TOOLS)
    out = "".join(delta.text for character in text for delta in parser.push(character) if isinstance(delta, Content))
    if "<tool_call>" not in text:
        held = text[len(out) :]
        assert text.startswith(out)
        assert "<tool_call>".startswith(held.lstrip())


@pytest.mark.parametrize("step", [1, 2, 7, 1000])
def test_a_reply_that_thinks_speaks_and_calls_twice(step: int) -> None:
    called = call("f", s='a<b \n"c"', n="3")
    text = f"hm\n</think>I look.\n{called}\n{call('g')}\n"
    deltas = parse([text[i : i + step] for i in range(0, len(text), step)], "reasoning")
    assert deltas == [
        Reasoning("hm\n"),
        Content("I look."),
        CallStart(0, "f"),
        CallArguments(0, '{"s": "a<b \\n\\"c\\"", "n": 3}'),
        CallStart(1, "g"),
        CallArguments(1, "{}"),
    ]


def test_names_come_once_and_whole_and_texts_as_they_are_written() -> None:
    parser = ReplyParser("content", TOOLS)
    assert parser.push("<tool_call>get") == []
    assert parser.push("_it<arg_") == []
    assert parser.push("key>s") == [CallStart(0, "get_it")]
    parser = ReplyParser("content", TOOLS)
    parser.push("<tool_call>f<arg_key>s</arg_key><arg_value>")
    assert parser.push("a</arg") == [CallArguments(0, "a")]
    assert parser.push("s") == [CallArguments(0, "</args")]
    assert parser.push("</arg_value>") == [CallArguments(0, '"')]


@pytest.mark.parametrize("closing", ["", "</think>", "</think>\n"])
def test_pitfall_23_a_call_ends_the_thinking_with_or_without_its_closing_tag(closing: str) -> None:
    deltas = parse([f"I need it{closing}{call('g')}"], "reasoning")
    assert thought(deltas) == "I need it"
    assert sound(deltas) == [("g", {})]
    assert said(deltas) == ""


def test_a_call_in_a_thought_is_a_thought_where_nothing_can_be_called() -> None:
    assert parse([f"as in {call('g')}</think>ok"], "reasoning", None) == [
        Reasoning(f"as in {call('g')}"),
        Content("ok"),
    ]


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_pitfall_24_a_call_without_arguments_has_a_name_and_an_empty_object(step: int) -> None:
    text = "<tool_call>g</tool_call>"
    deltas = parse([text[i : i + step] for i in range(0, len(text), step)])
    assert deltas == [CallStart(0, "g"), CallArguments(0, "{}")]


def test_thinking_that_never_ends_is_thinking() -> None:
    assert parse(["so and so </thi"], "reasoning") == [Reasoning("so and so </thi")]


@pytest.mark.parametrize(
    ("prompt", "start"),
    [
        ("<|assistant|><think>", "reasoning"),
        ("<|assistant|><think>\n", "reasoning"),
        ("<|assistant|><think></think>", "content"),
        ("<|assistant|><think>\n\n</think>\n\n", "content"),
        ("<|user|>what is <think>?<|assistant|>", "undecided"),
        ("", "undecided"),
    ],
)
def test_pitfall_22_the_start_is_read_off_the_prompt(prompt: str, start: str) -> None:
    assert start_of(prompt) == start


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>a</think>b", [Reasoning("a"), Content("b")]),
        ("\n<think>a</think>b", [Reasoning("a"), Content("b")]),
        ("a<think>b</think>", [Content("a<think>b</think>")]),
        ("\n b", [Content("\n b")]),
        ("<thin", [Content("<thin")]),
        ("", []),
    ],
)
def test_a_model_may_open_its_thinking_itself_and_only_at_the_start(text: str, expected: list[Delta]) -> None:
    assert parse([text], "undecided", None) == expected
    assert parse(list(text), "undecided", None) == expected


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call></tool_call>",
        '<tool_call>{"name": "f", "arguments": {}}</tool_call>',
        "<tool_call>not a name</tool_call>",
        "<tool_call>f",
        " see <tool_call> in the manual",
        "<tool_call>" + "x" * 300 + "</tool_call>",
        "</tool_call><arg_key>",
    ],
)
def test_what_cannot_be_a_call_is_content(text: str) -> None:
    assert parse([text]) == [Content(text)]


def test_a_call_after_what_looked_like_one() -> None:
    deltas = parse([f"x <tool_call>f {call('g')}"])
    assert said(deltas) == "x <tool_call>f"
    assert sound(deltas) == [("g", {})]


@pytest.mark.parametrize(
    ("inside", "arguments", "rest"),
    [
        ("f<arg_key>s</arg_key>x</arg_value></tool_call>y", "", "<arg_key>s</arg_key>x</arg_value></tool_call>y"),
        ("f<arg_key>n</arg_key><arg_value>1</arg_value>,</tool_call>", '{"n": 1', ",</tool_call>"),
        ("f<arg_key>n</arg_key><arg_value>1</arg_value>" + call("g"), '{"n": 1', call("g")),
        ("f<arg_key>s</arg_key><arg_value>never ends", '{"s": "never ends', ""),
        ("f<arg_key>n</arg_key><arg_value>12", '{"n": 12', ""),
        ("f<arg_key>s</arg_key><arg_value>x</arg_value>", '{"s": "x"', ""),
        ("f<arg_key>s</arg_ke", "", ""),
    ],
)
def test_a_call_that_breaks_off_cannot_be_taken_for_a_whole_one(inside: str, arguments: str, rest: str) -> None:
    parser = ReplyParser("content", TOOLS)
    deltas = joined([*parser.push("<tool_call>" + inside), *parser.finish()])
    assert deltas[0] == CallStart(0, "f")
    assert "".join(delta.text for delta in deltas if isinstance(delta, CallArguments)) == arguments
    assert sound(deltas) == [("f", None)]
    assert said(deltas) == rest
    assert not parser.called(cut=False)


def test_one_call_at_most_where_they_must_not_be_parallel() -> None:
    text = f"a{call('g')} b {call('f', s='x')}"
    assert parse([text], parallel=False) == [Content("a"), CallStart(0, "g"), CallArguments(0, "{}")]
    assert parse(list(text), parallel=False) == parse([text], parallel=False)


def test_a_reply_has_called_when_its_calls_are_whole_and_the_end_was_its_own() -> None:
    parser = ReplyParser("content", TOOLS)
    assert not parser.called(cut=False)
    parser.push(call("g"))
    assert parser.called(cut=False)
    assert not parser.called(cut=True)
    parser.push("<tool_call>g<arg_key>")
    assert not parser.called(cut=False)
    only = ReplyParser("content", TOOLS, parallel=False)
    only.push(call("g") + "more")
    assert only.called(cut=True)


def test_pitfall_32_an_earlier_turn_in_the_prompt_changes_nothing() -> None:
    turns = "<|user|>a<|assistant|><think>one</think><tool_call>f</tool_call><|observation|>x<|assistant|><think>"
    assert parse(["two</think>three"], start_of(turns)) == [Reasoning("two"), Content("three")]


@given(st.lists(st.sampled_from([1, 2, 3, 7]), max_size=12), st.integers(0, 12))
def test_reasoning_tokens_are_those_between_the_tags_however_many_come_at_once(ids: list[int], cut: int) -> None:
    """1 opens the thinking, 2 and 3 end it."""
    end = next((i for i, token in enumerate(ids) if token in (2, 3)), len(ids))
    counter = ReasoningTokens("reasoning", 1, (2, 3))
    counter.push(ids[:cut])
    counter.push(ids[cut:])
    assert counter.count == end
    opened = ReasoningTokens("undecided", 1, (2, 3))
    opened.push([1, 7, 7, 2, 7, 1, 7])
    assert opened.count == 2
    closed = ReasoningTokens("content", 1, (2, 3))
    closed.push([1, 7, 7])
    assert closed.count == 0
