"""One streamed completion, timed as a client sees it, and a wave of them at once."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

TIMEOUT_S = 600.0
"""Longest silence in a stream: a long prefill on a slow machine is silent."""


@dataclass
class Sample:
    """One request. Times are seconds of a monotonic clock; a sample with an `error` has no meaningful others."""

    sent: float = 0.0
    arrivals: list[float] = field(default_factory=list)
    """When each event that brought text came; a drafted step brings several tokens in one."""
    ended: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    accepted_tokens: int = 0
    """Of the completion, those that a drafter proposed."""
    error: str | None = None


class _Failed(Exception):
    """The stream is not the complete answer that was asked for."""


async def _events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """The events of a stream. Raises _Failed for an error frame, for no JSON, and for a stream that just stops."""
    async for line in response.aiter_lines():
        if line == "data: [DONE]":
            return
        # llama.cpp has sent errors in an SSE field of their own.
        if line.startswith("error:"):
            raise _Failed(f"the stream holds an error: {line.removeprefix('error:').strip()}")
        if not line.startswith("data:"):
            continue
        data = json.loads(line.removeprefix("data:"))
        if "error" in data:
            error = data["error"]
            raise _Failed(str(error.get("message", error) if isinstance(error, dict) else error))
        yield data
    raise _Failed("the stream ended without [DONE]")


async def _receive(response: httpx.Response, sample: Sample, max_tokens: int) -> None:
    if response.status_code != 200:
        await response.aread()
        raise _Failed(f"HTTP status {response.status_code}: {response.text[:300]}")
    async for data in _events(response):
        now = time.perf_counter()
        for choice in data.get("choices", ()):
            if choice.get("text"):
                sample.arrivals.append(now)
            if choice.get("finish_reason"):
                sample.ended = now
        usage = data.get("usage")
        if usage:
            sample.prompt_tokens = usage["prompt_tokens"]
            sample.completion_tokens = usage["completion_tokens"]
            details = usage.get("completion_tokens_details") or {}
            sample.accepted_tokens = details.get("accepted_prediction_tokens", 0)
    if not sample.arrivals or not sample.ended:
        raise _Failed("the stream brought no text or no finish reason")
    if sample.completion_tokens != max_tokens:
        raise _Failed(f"{max_tokens} tokens were asked for, {sample.completion_tokens} came")


async def complete(
    client: httpx.AsyncClient, prompt: str, max_tokens: int, extra: Mapping[str, Any] | None = None
) -> Sample:
    """Stream a greedy completion of exactly `max_tokens` tokens, past any end of sequence.

    Never raises for what the server does: whatever is not a complete stream is a sample with an `error`.
    """
    body = {
        "model": "default",
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        **(extra or {}),
    }
    sample = Sample(sent=time.perf_counter())
    try:
        async with client.stream("POST", "/v1/completions", json=body) as response:
            await _receive(response, sample, max_tokens)
    except _Failed as failure:
        sample.error = str(failure)
    except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError) as error:
        sample.error = f"{type(error).__name__}: {error}"
    return sample


async def _wave(url: str, prompts: Sequence[str], max_tokens: int, extra: Mapping[str, Any] | None) -> list[Sample]:
    async with httpx.AsyncClient(base_url=url, timeout=httpx.Timeout(TIMEOUT_S, connect=5)) as client:
        return await asyncio.gather(*(complete(client, prompt, max_tokens, extra) for prompt in prompts))


def wave(url: str, prompts: Sequence[str], max_tokens: int, extra: Mapping[str, Any] | None = None) -> list[Sample]:
    """Complete all prompts at once; `extra` goes into each request. One sample a prompt, in their order."""
    return asyncio.run(_wave(url, prompts, max_tokens, extra))
