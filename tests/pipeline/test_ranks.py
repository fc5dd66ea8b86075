"""Profile `tiny-four-spark`: four processes of one machine say what one says, and show what each of them does."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from .conftest import Server, serving
from .tiny_glm import HELD_OUT, of, said, streamed

EPSILON = 1e-4
"""Ranks add up in another order than one process, so that logits differ in their last bits. A greedy token may differ
where the best two are closer to each other than this, in log probability; measured differences are below 1e-5."""
WORDS = ("river", "stone", "paper", "Dora", "Warsaw", "seven", "music", "garden", "tool", "because", "window")
SCORED = {"logprobs": True, "top_logprobs": 2, "ignore_eos": True, "max_tokens": 32}


def asked_of_words(count: int) -> dict[str, Any]:
    chance = random.Random(count)
    return {"messages": [{"role": "user", "content": " ".join(chance.choice(WORDS) for _ in range(count))}]}


# The last prompt takes two chunks, and of its positions some are selected.
QUESTIONS = [HELD_OUT[0], asked_of_words(10), asked_of_words(150)]
LONGER = [*HELD_OUT[1:40:6], asked_of_words(400), asked_of_words(900)]


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("four"), profile="tiny-four-spark") as running:
        yield running


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("one"), profile="tiny-glm") as running:
        yield running


def scores(
    server: Server, at_once: int = 8, questions: Sequence[Mapping[str, Any]] = QUESTIONS, **changes: Any
) -> list[list[Any]]:
    """Of every question the tokens of its reply, each with its log probability and the best two."""
    with ThreadPoolExecutor(at_once) as pool:
        replies = list(pool.map(lambda question: said(server, question, **{**SCORED, **changes}), questions))
    assert all(len(reply.scores) == SCORED["max_tokens"] for reply in replies)
    return [reply.scores for reply in replies]


def assert_equal_or_close(theirs: Sequence[Mapping[str, Any]], ours: Sequence[Mapping[str, Any]]) -> None:
    """Token for token, up to the first where the best two are EPSILON apart: from there they say different things."""
    for place, (expected, found) in enumerate(zip(theirs, ours, strict=True)):
        if found["token"] != expected["token"]:
            best, second = (entry["logprob"] for entry in expected["top_logprobs"])
            assert best - second < EPSILON, f"token {place} differs, with a margin of {best - second}"
            return
        assert abs(found["logprob"] - expected["logprob"]) < EPSILON, place


def test_four_ranks_say_what_one_says_alone_together_drafted_and_serial(four: Server, one: Server) -> None:
    together = scores(four)
    assert scores(four, 1) == together
    assert scores(four, draft=False) == together
    for theirs, ours in zip(scores(one), together, strict=True):
        assert_equal_or_close(theirs, ours)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        ["--drafter", "mtp"],
        ["--drafter", "none"],
        ["--drafter", "ngram"],
        ["--set", "parallel.context=2"],
        ["--set", "parallel.context=1"],
    ],
    ids=" ".join,
)
def test_longer_prompts_with_any_drafter_and_share_of_the_cache(
    tmp_path: Path, one: Server, settings: list[str]
) -> None:
    with serving(tmp_path, *settings, profile="tiny-four-spark") as four:
        together = scores(four, questions=LONGER)
        assert scores(four, 1, LONGER) == together
        assert scores(four, questions=LONGER, draft=False) == together
    for theirs, ours in zip(scores(one, questions=LONGER), together, strict=True):
        assert_equal_or_close(theirs, ours)


def test_chat_and_completions_stream_what_they_say_whole(four: Server) -> None:
    for question in (of("tool call")[0], of("fact")[0]):
        whole = said(four, question)
        assert streamed(four, question).all == whole.all
        assert whole.finish in ("stop", "tool_calls")
    body = {"prompt": "My name is", "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    (choice,) = httpx.post(four.url + "/v1/completions", json=body, timeout=60).json()["choices"]
    with httpx.stream("POST", four.url + "/v1/completions", json={**body, "stream": True}, timeout=60) as reply:
        events = [line for line in reply.iter_lines() if line]
    assert events[-1] == "data: [DONE]"
    texts = [httpx.Response(200, text=event.removeprefix("data: ")).json()["choices"] for event in events[:-1]]
    assert "".join(choice["text"] for choices in texts for choice in choices) == choice["text"] != ""


def test_status_and_metrics_show_what_every_rank_has_done(four: Server) -> None:
    before = four.metrics()
    said(four, of("fact")[0])
    four.assert_idle()
    ranks = httpx.get(four.url + "/status", timeout=30).json()["engine"]["ranks"]
    assert [set(rank) for rank in ranks] == [
        {"rank", "steps", "exchanges", "memory_bytes", "seconds_since_report"},
    ] * 4
    assert [rank["rank"] for rank in ranks] == [0, 1, 2, 3]
    assert len({rank["steps"] for rank in ranks}) == 1
    assert len({rank["exchanges"] for rank in ranks}) == 1
    assert ranks[0]["exchanges"] > 10 * ranks[0]["steps"] > 0
    assert ranks[0]["seconds_since_report"] == 0
    resident = [process.memory_info().rss for process in four.followers()]
    for rank, now in zip(ranks[1:], resident, strict=True):
        assert 0 < rank["seconds_since_report"] < 60
        assert rank["memory_bytes"] == pytest.approx(now, rel=0.2)
    after = four.metrics()
    for rank in range(4):
        for name, least in (("steps_total", 1), ("exchanges_total", 10)):
            series = f'glmserve_rank_{name}{{rank="{rank}"}}'
            assert after[series] >= before[series] + least
        assert after[f'glmserve_rank_memory_bytes{{rank="{rank}"}}'] > 1 << 20
        assert 0 <= after[f'glmserve_rank_report_age_seconds{{rank="{rank}"}}'] < 60
    assert len({after[f'glmserve_rank_steps_total{{rank="{rank}"}}'] for rank in range(4)}) == 1
