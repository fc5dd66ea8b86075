"""Questions to Tiny GLM, and what it says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from openai import OpenAI

from .conftest import Server

HELD_OUT: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "models" / "tiny_glm" / "held_out.json").read_text("utf-8")
)
# The longest answer has some 60 tokens; a turn that does not end must not take minutes to fail.
GREEDY = {"model": "default", "temperature": 0, "max_tokens": 200}
STREAM = {"stream": True, "stream_options": {"include_usage": True}}


@dataclass
class Said:
    """A reply, put together from a stream or read as a whole; ids of calls, which are random, left out."""

    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    """Name, and arguments as they were sent."""
    finish: str = ""
    scores: list[Any] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)

    @property
    def all(self) -> tuple[str, str, list[tuple[str, str]], str]:
        return self.content, self.reasoning, self.calls, self.finish


def asked(question: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """The request of an entry of HELD_OUT."""
    kept = {key: question[key] for key in ("messages", "tools", "reasoning_effort") if key in question}
    return {**GREEDY, **kept, **changes}


def said(server: Server, question: Mapping[str, Any], **changes: Any) -> Said:
    response = httpx.post(server.url + "/v1/chat/completions", json=asked(question, **changes), timeout=120)
    assert response.status_code == 200, response.text
    reply = response.json()
    (choice,) = reply["choices"]
    message = choice["message"]
    return Said(
        message["content"] or "",
        message["reasoning_content"] or "",
        [(call["function"]["name"], call["function"]["arguments"]) for call in message["tool_calls"] or ()],
        choice["finish_reason"],
        choice["logprobs"]["content"] if choice["logprobs"] else [],
        reply["usage"],
    )


def streamed(server: Server, question: Mapping[str, Any]) -> Said:
    """The same through the OpenAI client, in pieces."""
    client = OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=120)
    found = Said()
    for chunk in client.chat.completions.create(**asked(question), **STREAM):
        if chunk.usage:
            found.usage = chunk.usage.model_dump()
        for choice in chunk.choices:
            delta = choice.delta
            found.content += delta.content or ""
            found.reasoning += getattr(delta, "reasoning_content", None) or ""
            for call in delta.tool_calls or ():
                if call.index == len(found.calls):
                    found.calls.append((call.function.name, ""))
                name, arguments = found.calls[call.index]
                found.calls[call.index] = (name, arguments + call.function.arguments)
            found.finish = choice.finish_reason or found.finish
    return found


def of(category: str) -> list[dict[str, Any]]:
    return [question for question in HELD_OUT if question["category"] == category]
