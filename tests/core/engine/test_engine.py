"""Admission, fairness, aborts, endings, faults."""

import asyncio
import random
import threading
from typing import Any

import pytest
from glmserve.api import QueueFullError, RequestError, UnavailableError
from glmserve.engine.drafters import NoDrafter
from glmserve.engine.engine import Engine

from . import tiny


async def _collect(engine: Engine, one: Any) -> list[Any]:
    return await tiny.collect(engine, one)


def test_a_stream_ends_once_with_its_usage(engine: Engine) -> None:
    outputs = asyncio.run(_collect(engine, tiny.request([3, 4, 5], 9, ignore_eos=True)))
    assert [o.finish_reason for o in outputs[:-1]] == [None] * (len(outputs) - 1)
    assert outputs[-1].finish_reason == "length"
    assert (outputs[-1].usage.prompt_tokens, outputs[-1].usage.completion_tokens) == (3, 9)
    assert len(tiny.tokens_of(outputs)) == 9


def test_a_stop_id_ends_it_and_is_not_shown(engine: Engine) -> None:
    one = tiny.request([3, 4], 50, logit_bias={9: 100.0}, stop_ids=frozenset({9}), min_tokens=3)
    outputs = asyncio.run(_collect(engine, one))
    assert outputs[-1].finish_reason == "stop"
    assert 9 not in tiny.tokens_of(outputs)
    assert outputs[-1].usage.completion_tokens == 4


def test_too_long_a_request_is_refused_with_the_numbers(engine: Engine) -> None:
    async def submit() -> None:
        engine.submit(tiny.request([3] * 200, 57))

    with pytest.raises(RequestError, match=r"256 tokens.*257.*200 in the prompt, 57") as caught:
        asyncio.run(submit())
    assert caught.value.code == "context_length_exceeded"


def test_a_full_queue_refuses_and_serves_on(model: Any) -> None:
    engine = tiny.make_engine(model, max_queue=3, max_sequences=1)

    async def flood() -> tuple[int, int]:
        streams, refused = [], 0
        for _ in range(30):
            try:
                streams.append(engine.submit(tiny.request([3, 4], 20, ignore_eos=True)))
            except QueueFullError:
                refused += 1
        for stream in streams:
            assert [o async for o in stream][-1].finish_reason == "length"
        return len(streams), refused

    served, refused = asyncio.run(flood())
    assert served >= 3
    assert refused >= 20
    assert len(tiny.generate(engine, [tiny.request([3], 2, ignore_eos=True)])[0]) == 2
    engine.stop()


def test_aborts_at_random_leave_nothing_behind(model: Any) -> None:
    engine = tiny.make_engine(model, max_sequences=4)
    reference = tiny.generate(engine, [tiny.request([7, 8, 9], 40, temperature=1.0, seed=3)])[0]
    rng = random.Random(1)

    async def one(i: int) -> None:
        if i % 10 == 0:
            outputs = await tiny.collect(engine, tiny.request([7, 8, 9], 40, temperature=1.0, seed=3))
            assert tiny.tokens_of(outputs) == reference
            return
        stream = engine.submit(tiny.request([rng.randrange(3, 60) for _ in range(rng.randrange(1, 60))], 40, seed=i))
        for _ in range(rng.randrange(6)):
            if (await anext(stream)).finish_reason:
                return
        stream.abort()
        last = [o async for o in stream][-1]
        assert last.finish_reason in ("abort", "length", "stop")

    async def storm() -> None:
        for start in range(0, 200, 20):
            await asyncio.gather(*(one(i) for i in range(start, start + 20)))

    asyncio.run(storm())
    status = engine.status()
    assert (status.running, status.waiting, status.pages_free) == (0, 0, status.pages_total)
    assert sum(status.finished.values()) == 202  # the storm, the reference and the warm-up
    engine.stop()
    assert engine.check_integrity() == []


def test_a_long_prompt_does_not_freeze_a_stream(model: Any) -> None:
    """Between two tokens of a running stream at most one chunk of another prompt is computed."""
    engine = tiny.make_engine(model, NoDrafter)

    async def run() -> tuple[int, int]:
        stream = engine.submit(tiny.request([3, 4], 60, ignore_eos=True))
        await anext(stream)
        long = engine.submit(tiny.request(list(range(3, 60)) * 4, 2, ignore_eos=True))  # 228 tokens: 15 chunks
        await anext(long)
        before = engine.status().steps
        during = 1
        while (await asyncio.wait_for(anext(stream), 5)).finish_reason is None:
            during += 1
        return before, during

    steps, _ = asyncio.run(run())
    assert steps >= 15  # one chunk a step while the stream was decoding, not all at once
    engine.stop()


def test_a_short_prompt_overtakes_a_long_one(model: Any) -> None:
    engine = tiny.make_engine(model, NoDrafter, step_tokens=16)
    order: list[str] = []

    async def first_token(name: str, length: int) -> None:
        stream = engine.submit(tiny.request([5] * length, 1, ignore_eos=True))
        async for _ in stream:
            order.append(name)

    async def run() -> None:
        await asyncio.gather(first_token("long", 240), first_token("short", 8))

    asyncio.run(run())
    assert order == ["short", "long"]
    engine.stop()


def test_draining_refuses_new_work_and_finishes_old(model: Any) -> None:
    engine = tiny.make_engine(model)

    async def run() -> None:
        stream = engine.submit(tiny.request([3, 4], 40, ignore_eos=True))
        engine.drain()
        with pytest.raises(UnavailableError):
            engine.submit(tiny.request([3], 1))
        assert [o async for o in stream][-1].finish_reason == "length"

    asyncio.run(run())
    assert engine.idle()
    engine.stop()
    engine.stop()


class Failing:
    """A model whose forward pass raises while `broken` is set."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.info, self.row_invariant, self.nbytes = model.info, model.row_invariant, model.nbytes
        self.broken = False

    def forward(self, batch: Any, pools: Any) -> Any:
        if self.broken:
            raise RuntimeError("out of luck")
        return self._model.forward(batch, pools)


def test_a_failing_step_ends_its_streams_and_three_end_the_engine(model: Any) -> None:
    failing = Failing(model)
    engine = tiny.make_engine(failing)
    failing.broken = True
    for _ in range(3):
        outputs = asyncio.run(_collect(engine, tiny.request([3], 2)))
        assert outputs[-1].finish_reason == "error"
        assert "out of luck" in outputs[-1].error
    deadline = threading.Event()
    while engine.status().state == "ready" and not deadline.wait(0.05):
        pass
    assert engine.status().state == "failed"
    with pytest.raises(UnavailableError, match="out of luck"):
        asyncio.run(_collect(engine, tiny.request([3], 2)))
    engine.stop()


def test_one_failing_step_is_survived(model: Any) -> None:
    failing = Failing(model)
    engine = tiny.make_engine(failing)
    failing.broken = True
    assert asyncio.run(_collect(engine, tiny.request([3], 2)))[-1].finish_reason == "error"
    failing.broken = False
    assert len(tiny.generate(engine, [tiny.request([3], 2, ignore_eos=True)])[0]) == 2
    status = engine.status()
    assert (status.state, status.pages_free) == ("ready", status.pages_total)
    engine.stop()


def test_logprobs_come_with_every_token(engine: Engine) -> None:
    outputs = asyncio.run(_collect(engine, tiny.request([3, 4], 6, logprobs=3, ignore_eos=True)))
    entries = [entry for output in outputs for entry in output.logprobs]
    assert [e.token_id for e in entries] == tiny.tokens_of(outputs)
    for entry in entries:  # greedy: the token is the likeliest
        assert entry.top[0] == (entry.token_id, entry.logprob)
        assert len(entry.top) == 3
