"""Ten minutes on four ranks, with clients that leave at any time: nothing leaks, hangs or comes apart."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from .conftest import Server

SECONDS = float(os.environ.get("GLMSERVE_SOAK_S", "600"))
"""Of load."""
EARLY = 0.1
"""After this part of them the ranks have what they need, and need no more later."""
CLIENTS = 10
"""The profile runs four sequences at once."""
POOL = ("--set", "engine.kv_tokens=12288", "--set", "engine.max_context=8192")
"""A pool that four long sequences do not fit in: some wait for pages. And all of it has soon been written: the system
commits memory only then, and that of the profile's million tokens would go on growing for hours."""
LONGEST_PROMPT, LONGEST_REPLY = 6000, 96
REQUEST_S = 240.0
"""From sending a request to its last byte: what takes longer hangs."""
RSS_MARGIN_BYTES = 64 << 20
FILES_MARGIN, THREADS_MARGIN = 4, 2
WORDS = ("rain", "river", "stone", "seven", "green", "the", "of", "counts", "Ada", "why", "blue", "one,", "two,")
PROBES: tuple[dict[str, Any], ...] = (
    {"messages": [{"role": "user", "content": "Name three rivers, and say why."}], "temperature": 0},
    {"messages": [{"role": "user", "content": "Count the stones. " * 60}], "temperature": 0.9, "seed": 11},
)


@dataclass
class Tally:
    sent: int = 0
    complete: int = 0
    left: Counter[str] = field(default_factory=Counter)
    """Clients that went away: from which kind of request."""
    tokens: int = 0
    """Of complete replies, prompts included."""
    probes: int = 0


@dataclass(frozen=True)
class Footprint:
    """Of one rank's process."""

    rss: int
    files: int
    threads: int


def body(rng: random.Random) -> tuple[str, dict[str, Any]]:
    """A route, and a request of a random length: short ones are many, a few have thousands of tokens."""
    length = int(LONGEST_PROMPT ** rng.uniform(0.15, 1))
    common = {
        "max_tokens": rng.randint(1, LONGEST_REPLY),
        "temperature": rng.choice([0, 0.9]),
        "seed": rng.randrange(1000),
        "draft": rng.random() < 0.7,
        "ignore_eos": rng.random() < 0.5,
        "stream": rng.random() < 0.6,
    }
    if rng.random() < 0.5:
        return "/v1/completions", common | {"prompt": [rng.randrange(10, 900) for _ in range(length)]}
    # A word is two or three tokens.
    text = " ".join(rng.choice(WORDS) for _ in range(max(1, length // 3)))
    return "/v1/chat/completions", common | {
        "messages": [{"role": "user", "content": text}],
        "n": rng.choice([1, 1, 2]),
    }


def check_stream(taken: bytes) -> None:
    assert taken.endswith(b"data: [DONE]\n\n"), taken[-300:]
    chunks = [json.loads(line[6:]) for line in taken.split(b"\n\n") if line.startswith(b"data: {")]
    assert all("error" not in chunk for chunk in chunks), chunks[-1]
    reasons = {choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]} - {None}
    assert reasons <= {"stop", "length", "tool_calls"}, reasons
    assert reasons


async def stream(client: httpx.AsyncClient, route: str, asked: dict[str, Any], limit: int | None, tally: Tally) -> None:
    """Leaves after `limit` bytes; 0 is as soon as the reply begins."""
    taken = b""
    async with client.stream("POST", route, json=asked | {"stream_options": {"include_usage": True}}) as reply:
        assert reply.status_code == 200, await reply.aread()
        if limit != 0:
            async for part in reply.aiter_raw():
                taken += part
                if limit is not None and len(taken) >= limit:
                    break
    if limit is not None and not taken.endswith(b"data: [DONE]\n\n"):
        tally.left["stream"] += 1
        return
    check_stream(taken)
    tally.complete += 1
    usage = next(json.loads(line[6:])["usage"] for line in reversed(taken.split(b"\n\n")) if b'"usage":{' in line)
    tally.tokens += usage["total_tokens"]


async def whole(
    client: httpx.AsyncClient, route: str, asked: dict[str, Any], patience_s: float | None, tally: Tally
) -> None:
    """Leaves when the reply is not there after `patience_s`."""
    try:
        reply = await client.post(route, json=asked, timeout=REQUEST_S if patience_s is None else patience_s)
    except httpx.TimeoutException:
        assert patience_s is not None, "a request hangs"
        tally.left["whole"] += 1
        return
    assert reply.status_code == 200, reply.text
    answer = reply.json()
    assert {choice["finish_reason"] for choice in answer["choices"]} <= {"stop", "length", "tool_calls"}
    tally.complete += 1
    tally.tokens += answer["usage"]["total_tokens"]


async def probe(client: httpx.AsyncClient) -> list[Any]:
    answers = []
    for asked in PROBES:
        reply = await client.post("/v1/chat/completions", json=asked | {"max_tokens": 24, "ignore_eos": True})
        assert reply.status_code == 200, reply.text
        choice = reply.json()["choices"][0]
        answers.append((choice["message"], choice["finish_reason"]))
    return answers


async def longest(server: Server) -> None:
    """More than the pool holds at once: afterwards every page has been written, and the largest tensors were there."""

    async def one(client: httpx.AsyncClient, number: int) -> None:
        prompt = [10 + (7 * i + number) % 900 for i in range(LONGEST_PROMPT)]
        asked = {"prompt": prompt, "max_tokens": LONGEST_REPLY, "ignore_eos": True}
        assert (await client.post("/v1/completions", json=asked)).status_code == 200

    async with httpx.AsyncClient(base_url=server.url, timeout=REQUEST_S) as client:
        await asyncio.gather(*(one(client, number) for number in range(3)))


async def storm(server: Server, seconds: float, expected: list[Any], tally: Tally, seed: int) -> None:
    end = time.monotonic() + seconds

    async def one(number: int) -> None:
        rng = random.Random(f"{seed} {number}")
        # A connection a client, which is closed when it leaves.
        async with httpx.AsyncClient(base_url=server.url, timeout=REQUEST_S) as client:
            while time.monotonic() < end:
                route, asked = body(rng)
                leaves = rng.random() < 0.4
                tally.sent += 1
                if asked["stream"]:
                    limit = rng.choice([0, rng.randrange(1, 8000)]) if leaves else None
                    await asyncio.wait_for(stream(client, route, asked, limit, tally), REQUEST_S)
                else:
                    patience_s = rng.uniform(0.05, 4) if leaves else None
                    await asyncio.wait_for(whole(client, route, asked, patience_s, tally), REQUEST_S)

    async def probing() -> None:
        async with httpx.AsyncClient(base_url=server.url, timeout=REQUEST_S) as client:
            while time.monotonic() < end:
                assert await probe(client) == expected
                tally.probes += 1
                await asyncio.sleep(min(10, seconds / 10))

    async with asyncio.TaskGroup() as group:
        for number in range(CLIENTS):
            group.create_task(one(number))
        group.create_task(probing())


def alone(server: Server) -> list[Any]:
    async def ask() -> list[Any]:
        async with httpx.AsyncClient(base_url=server.url, timeout=REQUEST_S) as client:
            return await probe(client)

    return asyncio.run(ask())


def drained(server: Server, processes: list[psutil.Process]) -> tuple[dict[str, Any], list[Footprint]]:
    """The engine's status and every rank's footprint once nothing runs; checks that the ranks are together."""
    server.assert_idle()
    # Connections of clients are closed, and every rank has been heard again, within seconds.
    time.sleep(5)
    engine = httpx.get(server.url + "/status", timeout=30).json()["engine"]
    assert engine["state"] == "ready", engine["reason"]
    assert engine["pages_free"] == engine["pages_total"]
    assert engine["running"] == engine["waiting"] == 0
    assert [rank["rank"] for rank in engine["ranks"]] == list(range(4))
    assert {rank["steps"] for rank in engine["ranks"]} == {engine["ranks"][0]["steps"]}
    assert {rank["exchanges"] for rank in engine["ranks"]} == {engine["ranks"][0]["exchanges"]}
    # More than one in each step, of which some are the self-test's.
    assert engine["ranks"][0]["exchanges"] > engine["ranks"][0]["steps"] >= engine["steps"]
    return engine, [Footprint(one.memory_info().rss, one.num_fds(), one.num_threads()) for one in processes]


@pytest.mark.slow
def test_four_ranks_under_load_neither_leak_nor_hang_nor_part(tmp_path: Path) -> None:
    """A rank that computed something else than rank 0, or made other exchanges, would have ended the server: they are
    compared after every message, and the state would not be ready."""
    server = Server(tmp_path, *POOL, profile="tiny-four-spark")
    processes: list[psutil.Process] = []
    tally = Tally()
    try:
        server.ready()
        leader = psutil.Process(server.popen.pid)
        followers = [child for child in leader.children(recursive=True) if "glmserve.follower" in child.cmdline()]
        processes = [leader, *followers]
        assert len(followers) == 3
        expected = alone(server)
        asyncio.run(longest(server))
        asyncio.run(storm(server, EARLY * SECONDS, expected, tally, 1))
        _, early = drained(server, processes)
        asyncio.run(storm(server, (1 - EARLY) * SECONDS, expected, tally, 2))
        engine, late = drained(server, processes)
        assert alone(server) == expected
    finally:
        code = server.end()
    assert code == 0
    gone, left = psutil.wait_procs(processes[1:], 10)
    for one in left:
        with suppress(psutil.NoSuchProcess):
            one.kill()
    assert left == []
    assert len(gone) == 3
    assert "Traceback" not in server.err

    figures = {key: engine[key] for key in ("steps", "prompt_tokens", "generated_tokens", "preemptions", "finished")}
    print(f"\n{SECONDS:.0f} s: {tally}\n{figures}, exchanges {engine['ranks'][0]['exchanges']}")
    for rank, (before, after) in enumerate(zip(early, late, strict=True)):
        print(f"rank {rank}: {before}, {after}, {(after.rss - before.rss) / 2**20:+.0f} MB")
    assert tally.complete > tally.sent / 3
    assert min(tally.left["stream"], tally.left["whole"]) > 0
    assert engine["finished"]["abort"] > 0
    assert tally.probes > 0
    for before, after in zip(early, late, strict=True):
        assert after.files <= before.files + FILES_MARGIN
        assert after.threads <= before.threads + THREADS_MARGIN
    assert max(after.rss - before.rss for before, after in zip(early, late, strict=True)) <= RSS_MARGIN_BYTES
