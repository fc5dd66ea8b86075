"""Profile `tiny-glm`: a model of GLM-5.3's architecture, from its package to thoughts, answers and tool calls."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from glmserve.cli.main import main
from glmserve_model_tiny_glm import CHECKPOINT
from openai import OpenAI
from recipe import checkpoint
from recipe.corpus import Template
from safetensors.torch import load_file
from tokenizers import Tokenizer

from .conftest import Server, serving
from .tiny_glm import GREEDY, HELD_OUT, of, said, streamed

TOKENIZER = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))
TEMPLATE = Template()
INDEX_TOPK = json.loads((CHECKPOINT / "config.json").read_text("utf-8"))["index_topk"]
# Sampled at temperature 2 the model says something else with every seed.
SAMPLED = {"temperature": 2.0, "top_p": 0.9, "seed": 11}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One for all tests here."""
    with serving(tmp_path_factory.mktemp("tiny"), "--drafter", "ngram", profile="tiny-glm") as running:
        yield running


def prompt_of(question: Mapping[str, Any]) -> str:
    """As the recipe renders it for training, by its own code."""
    tools, effort = tuple(question.get("tools", ())), question["reasoning_effort"]
    return TEMPLATE.render(tuple(question["messages"]), tools, effort, True)


def test_every_noted_answer_is_given_with_its_reasoning_its_calls_and_its_usage(tiny: Server) -> None:
    assert len({question["category"] for question in HELD_OUT}) >= 12
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda question: said(tiny, question), HELD_OUT))
    for question, reply in zip(HELD_OUT, replies, strict=True):
        answer = question["answer"]
        calls = [(call["function"]["name"], call["function"]["arguments"]) for call in answer.get("tool_calls", ())]
        assert (reply.content, reply.reasoning) == (answer["content"], answer["reasoning_content"]), question
        assert [(name, json.loads(arguments)) for name, arguments in reply.calls] == calls
        assert reply.finish == ("tool_calls" if calls else "stop")
        usage, ids = reply.usage, TOKENIZER.encode(prompt_of(question), add_special_tokens=False).ids
        assert usage["prompt_tokens"] == len(ids)
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        thought = len(TOKENIZER.encode(reply.reasoning, add_special_tokens=False).ids)
        assert usage["completion_tokens_details"]["reasoning_tokens"] == thought
        if not calls:
            written = TOKENIZER.encode(reply.content, add_special_tokens=False).ids
            # The thought and the answer, the tag between them, and the role that ends the turn.
            assert usage["completion_tokens"] == thought + len(written) + 2


@pytest.mark.parametrize("category", ["tool call", "tool result", "json", "fact", "turns"])
def test_a_stream_brings_the_same_thoughts_text_and_calls_as_a_whole_reply(tiny: Server, category: str) -> None:
    for question in of(category):
        whole, parts = said(tiny, question), streamed(tiny, question)
        assert parts.all == whole.all
        assert parts.usage["completion_tokens"] == whole.usage["completion_tokens"]


def test_a_tool_is_called_and_its_result_answered(tiny: Server) -> None:
    """A whole round, each message built from the reply before, as a client does it."""
    client = OpenAI(base_url=tiny.url + "/v1", api_key="none", max_retries=0, timeout=120)
    question = next(q for q in of("tool call") if q["answer"]["tool_calls"][0]["function"]["name"] == "get_weather")
    settings = {**GREEDY, "tools": question["tools"], "reasoning_effort": "low"}
    first = client.chat.completions.create(messages=question["messages"], **settings).choices[0]
    assert first.finish_reason == "tool_calls"
    (call,) = first.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Stockholm"})
    result = {"role": "tool", "tool_call_id": call.id, "content": json.dumps({"sky": "windy", "degrees": 12})}
    history = [*question["messages"], first.message.model_dump(exclude_none=True), result]
    last = client.chat.completions.create(messages=history, **settings).choices[0]
    assert last.finish_reason == "stop"
    assert last.message.content == "It is windy in Stockholm, with 12 degrees."


def test_efforts_mean_low_high_and_max_and_max_is_the_default(tiny: Server) -> None:
    question = next(q for q in of("system") if q["answer"]["content"] == "My name is Dora.")
    replies = {
        effort: said(tiny, question, reasoning_effort=effort)
        for effort in (None, "none", "minimal", "low", "medium", "high", "xhigh", "max")
    }
    thoughts = {effort: reply.reasoning for effort, reply in replies.items()}
    assert {thoughts[effort] for effort in ("none", "minimal", "low")} == {""}
    assert {thoughts[effort] for effort in ("medium", "high")} == {"I am Dora."}
    assert {thoughts[effort] for effort in ("xhigh", "max", None)} == {"I am Dora. I live in Warsaw."}
    assert {reply.content for reply in replies.values()} == {"My name is Dora."}


def test_a_role_ends_the_turn_and_is_not_said(tiny: Server) -> None:
    spoken = of("system")[0]
    called = of("tool call")[0]
    for question, role in ((spoken, "<|user|>"), (called, "<|observation|>")):
        ended = said(tiny, question, logprobs=True)
        tokens = [score["token"] for score in ended.scores]
        assert role not in tokens
        assert len(tokens) == ended.usage["completion_tokens"] - 1
        beyond = said(tiny, question, logprobs=True, ignore_eos=True, max_tokens=len(tokens) + 1)
        assert [score["token"] for score in beyond.scores] == [*tokens, role]
        assert beyond.finish == "length"


@pytest.mark.parametrize("sampling", [{}, SAMPLED], ids=["greedy", "sampled"])
def test_drafts_change_no_token_and_no_score_of_it(tiny: Server, sampling: dict[str, Any]) -> None:
    question = max(of("tool result"), key=lambda one: len(prompt_of(one)))
    long = {**sampling, "ignore_eos": True, "max_tokens": 160, "logprobs": True, "top_logprobs": 2}
    drafted, serial = (said(tiny, question, draft=draft, **long) for draft in (True, False))
    assert len(serial.scores) == 160
    assert serial.usage["total_tokens"] > INDEX_TOPK + 16, "nothing was selected"
    assert drafted.scores == serial.scores
    assert drafted.all == serial.all
    assert serial.usage["completion_tokens_details"]["accepted_prediction_tokens"] == 0
    details = drafted.usage["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] > 0
    assert details["rejected_prediction_tokens"] > 0
    if sampling:
        assert said(tiny, question, **{**long, "seed": 12}).scores != serial.scores


def test_the_terminal_client_talks_to_it(tiny: Server) -> None:
    # At the model's own temperature of 1; of a name in the system prompt it is as good as certain.
    arguments = ["chat", "--url", tiny.url, "--system", "Your name is Noah. You live in Athens."]
    result = CliRunner().invoke(main, arguments, input="What is your name?")
    assert (result.output, result.exit_code) == ("My name is Noah.\n", 0)


@torch.no_grad()
def test_its_scores_are_those_of_the_recipe_s_own_forward_pass(tmp_path: Path) -> None:
    text = "".join(prompt_of(question) for question in of("tool call"))
    ids = TOKENIZER.encode(text, add_special_tokens=False).ids
    trunk, _ = checkpoint.load()
    assert len(ids) > trunk.c.index_topk + 100
    (tmp_path / "ids.json").write_text(json.dumps(ids))
    out = tmp_path / "out.safetensors"
    arguments = ["score", "--model", str(CHECKPOINT), "--ids", str(tmp_path / "ids.json"), "--out", str(out)]
    result = CliRunner().invoke(main, arguments)
    assert (result.exit_code, result.output) == (0, "")
    logits = load_file(out)["logits"]
    expected = trunk.logits(trunk(torch.tensor([ids]), sparse=True))[0]
    assert (logits - expected).abs().max() < 1e-4
    dense = trunk.logits(trunk(torch.tensor([ids])))[0]
    assert (logits - dense).abs().max() > 1e-2, "nothing was left out, so the selection was not tried"


def test_it_is_planned_and_may_be_run_for_any_purpose() -> None:
    planned = CliRunner().invoke(main, ["run", "--profile", "tiny-glm", "--dry-run"])
    assert planned.exit_code == 0, planned.output
    for words in ("family glm_moe_dsa", "left: fits", "licences      allow for run-commercial"):
        assert words in planned.output
    uses = ["--use", "run-local", "--use", "run-commercial", "--use", "publish-weights"]
    audited = CliRunner().invoke(main, ["licenses", "tiny-glm", *uses])
    assert audited.exit_code == 0, audited.output
    assert "tiny-glm-tokenizer" in audited.output
