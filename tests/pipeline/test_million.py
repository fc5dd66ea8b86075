"""A million tokens from the request to the reply: the API, scheduler, page tables, positions and ranks.

What the model computes over such a context is shown beside the family; here every page holds zeros.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from glmserve_model_tiny_glm import CHECKPOINT
from tokenizers import Tokenizer

from .conftest import assert_refusal, serving

PLUGIN = Path(__file__).with_name("claims_all.py")
CONTEXT = 1_048_576
NEW = 16
"""Tokens to come."""
LINE = "The old clock in the hall has stopped.\n"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    settings = (f"plugins.files=['{PLUGIN}']", "cache.name=claims-all")
    arguments = [word for setting in settings for word in ("--set", setting)]
    with (
        serving(tmp_path_factory.mktemp("million"), *arguments, profile="tiny-four-spark") as running,
        httpx.Client(base_url=running.url, timeout=300) as client,
    ):
        yield client


def ids(count: int) -> list[int]:
    return [100 + i % 900 for i in range(count)]


def complete(http: httpx.Client, prompt: Any, **other: Any) -> httpx.Response:
    body = {"model": "default", "prompt": prompt, "max_tokens": NEW, "temperature": 0, "ignore_eos": True} | other
    return http.post("/v1/completions", json=body)


def test_the_last_token_of_the_context_is_decoded(http: httpx.Client) -> None:
    response = complete(http, ids(CONTEXT - NEW))
    assert response.status_code == 200, response.text
    reply = response.json()
    assert reply["choices"][0]["finish_reason"] == "length"
    usage = reply["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (CONTEXT - NEW, NEW)
    assert usage["total_tokens"] == CONTEXT
    assert usage["prompt_tokens_details"]["cached_tokens"] > CONTEXT - 1000
    ranks = http.get("/status").json()["engine"]["ranks"]
    assert len({(rank["steps"], rank["exchanges"]) for rank in ranks}) == 1


def test_it_is_streamed_as_well(http: httpx.Client) -> None:
    with http.stream("POST", "/v1/completions", json={"prompt": ids(CONTEXT - NEW), "stream": True}) as response:
        lines = [line for line in response.iter_lines() if line]
    assert response.status_code == 200
    assert lines[-1] == "data: [DONE]"


def test_a_token_more_is_refused_with_both_numbers(http: httpx.Client) -> None:
    refusal = assert_refusal(complete(http, ids(CONTEXT), max_tokens=1))
    assert refusal["code"] == "context_length_exceeded"
    assert "1048576" in refusal["message"].replace(",", "")
    assert complete(http, ids(CONTEXT - 1), max_tokens=1).json()["usage"]["total_tokens"] == CONTEXT


def test_a_text_of_a_million_tokens_is_read(http: httpx.Client) -> None:
    tokenizer = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))
    per_line = len(tokenizer.encode(LINE * 2).ids) - len(tokenizer.encode(LINE).ids)
    response = complete(http, LINE * ((CONTEXT - 2 * NEW) // per_line))
    assert response.status_code == 200, response.text
    assert CONTEXT - 2 * NEW - 2 * per_line < response.json()["usage"]["prompt_tokens"] <= CONTEXT - NEW
