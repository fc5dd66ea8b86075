"""Many streams at once, with clients that leave at any byte: nothing leaks, and what survives is right."""

import asyncio
import json
import random
import time
from typing import Any

import httpx
import pytest

from .conftest import Server

QUESTIONS = (
    "What is the capital of France?",
    "Write a poem about rain.",
    "Count: one, two, three, one, two, three, one, two, three.",
    "Who was Ada Lovelace?",
    "List five colours, five animals and five rivers. " * 12,
    "Why is the sky blue?",
)
STREAMS = 8


def body(i: int) -> dict[str, Any]:
    """Request i of a fixed set, each unlike the others in length, sampling or drafting."""
    return {
        "messages": [{"role": "user", "content": QUESTIONS[i % len(QUESTIONS)]}],
        "max_tokens": 6 + i % 9,
        "temperature": (0, 0.9)[i % 2],
        "seed": i,
        "draft": i % 4 != 3,
        "stream": True,
    }


async def read(client: httpx.AsyncClient, i: int, limit: int | None) -> bytes | None:
    """The events of request i without their ids and times; None when we left after `limit` bytes."""
    taken = b""
    async with client.stream("POST", "/v1/chat/completions", json=body(i)) as reply:
        assert reply.status_code == 200
        async for part in reply.aiter_raw():
            taken += part
            if limit is not None and len(taken) >= limit:
                return None
    assert taken.endswith(b"data: [DONE]\n\n")
    return text_of(taken)


def text_of(events: bytes) -> bytes:
    chunks = [json.loads(line[6:]) for line in events.split(b"\n\n") if line.startswith(b"data: {")]
    assert all("error" not in chunk for chunk in chunks)
    deltas = [choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"]]
    return "".join(deltas).encode() + b"|" + str(chunks[-1]["choices"][0]["finish_reason"]).encode()


async def storm(server: Server, count: int, kinds: int) -> tuple[int, int]:
    """(complete, abandoned) of `count` requests over STREAMS connections."""
    rng = random.Random(count)
    limits = httpx.Limits(max_connections=STREAMS, max_keepalive_connections=STREAMS)
    async with httpx.AsyncClient(base_url=server.url, timeout=120, limits=limits) as client:
        alone = [await read(client, i, None) for i in range(kinds)]
        work = [(rng.randrange(kinds), rng.randrange(1, 4000) if rng.random() < 0.5 else None) for _ in range(count)]
        complete = abandoned = 0

        async def stream() -> None:
            nonlocal complete, abandoned
            while work:
                i, limit = work.pop()
                text = await read(client, i, limit)
                if text is None:
                    abandoned += 1
                else:
                    complete += 1
                    assert text == alone[i], i

        await asyncio.gather(*(stream() for _ in range(STREAMS)))
    return complete, abandoned


def test_clients_that_leave_take_nothing_with_them(server: Server) -> None:
    complete, abandoned = asyncio.run(storm(server, 60, 12))
    assert complete + abandoned == 60
    assert min(complete, abandoned) > 4
    server.assert_idle()


@pytest.mark.slow
def test_500_requests_over_8_streams(server: Server) -> None:
    started = time.monotonic()
    complete, abandoned = asyncio.run(storm(server, 500, 24))
    print(f"\n500 requests, {abandoned} abandoned, in {time.monotonic() - started:.0f} s")
    assert complete + abandoned == 500
    assert min(complete, abandoned) > 100
    server.assert_idle()


def test_a_whole_reply_whose_client_leaves_is_aborted(server: Server) -> None:
    before = server.metrics().get('glmserve_requests_finished_total{reason="abort"}', 0)

    async def leave() -> None:
        async with httpx.AsyncClient(base_url=server.url) as client:
            with pytest.raises(httpx.ReadTimeout):
                await client.post(
                    "/v1/chat/completions",
                    json=body(1) | {"stream": False, "max_tokens": 4000, "ignore_eos": True, "n": 2},
                    timeout=httpx.Timeout(30, read=1),
                )

    asyncio.run(leave())
    server.assert_idle()
    assert server.metrics()['glmserve_requests_finished_total{reason="abort"}'] == before + 2
