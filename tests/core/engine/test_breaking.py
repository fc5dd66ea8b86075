"""Races, faults of plugins and bad luck: the tokens stay right, no stream waits for ever, nothing leaks."""

import asyncio
import itertools
import random
import threading
import time
import tracemalloc
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from glmserve.api import Draft, Match, PrefixCache, QueueFullError, RequestError, UnavailableError
from glmserve.engine.caches import NoCache
from glmserve.engine.detokenizer import Detokenizer
from glmserve.engine.drafters import NgramDrafter, NoDrafter
from glmserve.engine.engine import Engine
from glmserve.engine.request import Output

from . import tiny
from .test_detokenizer import byte_tokenizer
from .test_exact import Memory

DEADLINE_S = 20.0


async def within(awaitable: Any) -> Any:
    return await asyncio.wait_for(awaitable, DEADLINE_S)


def outputs_of(engine: Engine, one: Any) -> list[Output]:
    async def run() -> list[Output]:
        return await within(tiny.collect(engine, one))

    return asyncio.run(run())


def end(engine: Engine) -> None:
    """Idle, whole and stopped."""
    status = engine.status()
    assert (status.running, status.waiting, status.pages_free) == (0, 0, status.pages_total)
    engine.stop()
    assert engine.check_integrity() == []


@pytest.fixture(scope="module")
def serial(model: Any) -> Any:
    """The tokens of one request alone, without drafts."""
    engine = tiny.make_engine(model, NoDrafter)
    yield lambda one: tiny.generate(engine, [one])[0]
    engine.stop()


class Raising(NgramDrafter):
    """Breaks in the methods that `broken` names, now and then or always."""

    name = "raising"
    broken: frozenset[str] = frozenset()
    every = 1
    calls = 0

    def _maybe(self, method: str) -> None:
        Raising.calls += 1
        if method in self.broken and Raising.calls % self.every == 0:
            raise RuntimeError(f"{method} is broken on purpose")

    def observe(self, sequence: int, start: int, tokens: Sequence[int], taps: Mapping[int, Any]) -> None:
        self._maybe("observe")
        seen = len(self._histories[sequence].tokens) if sequence in self._histories else 0
        assert start == seen, "the engine skipped tokens"
        super().observe(sequence, start, tokens, taps)

    def propose(self, sequence: int, pending: int, depth: int) -> Draft:
        self._maybe("propose")
        return super().propose(sequence, pending, depth)

    def forget(self, sequence: int) -> None:
        super().forget(sequence)
        self._maybe("forget")


@pytest.mark.parametrize("method", ["observe", "propose", "forget"])
@pytest.mark.parametrize("every", [1, 5])
def test_a_drafter_that_raises_costs_speed_and_nothing_else(
    model: Any, serial: Any, monkeypatch: pytest.MonkeyPatch, method: str, every: int
) -> None:
    monkeypatch.setattr(Raising, "broken", frozenset({method}))
    monkeypatch.setattr(Raising, "every", every)
    engine = tiny.make_engine(model, Raising, max_context=96, kv_tokens=128)
    batch = [tiny.request([5, 6, 7, 8] * 5, 60, temperature=0.5, seed=i, ignore_eos=True) for i in range(4)]
    assert tiny.generate(engine, batch) == [serial(one) for one in batch]
    assert engine.status().preemptions > 0
    end(engine)


def test_a_drafter_that_missed_tokens_is_never_told_of_later_ones(
    model: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """`Raising.observe` asserts the contract; one failure a sequence reaches the log, not one a token."""
    engine = tiny.make_engine(model, Raising)
    monkeypatch.setattr(Raising, "broken", frozenset({"observe"}))
    outputs_of(engine, tiny.request([3, 4, 5], 30, ignore_eos=True))
    assert len([r for r in caplog.records if "failed to observe" in r.message]) == 1
    end(engine)


class BrokenCache(NoCache):
    """Promises what it cannot keep."""

    name = "broken"
    broken = ""

    def match(self, tokens: Sequence[int], salt: bytes) -> Match:
        if self.broken == "match":
            raise RuntimeError("match is broken on purpose")
        return Match(len(tokens), None)

    def restore(self, match: Match, pages: Sequence[int]) -> int:
        if self.broken == "restore":
            raise RuntimeError("restore is broken on purpose")
        return 0

    def store(self, tokens: Sequence[int], salt: bytes, pages: Sequence[int]) -> None:
        if self.broken == "store":
            raise RuntimeError("store is broken on purpose")


@pytest.mark.parametrize("method", ["match", "restore", "store"])
def test_a_cache_that_raises_costs_time_and_nothing_else(
    model: Any, serial: Any, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr(BrokenCache, "broken", method)
    cache: type[PrefixCache] = BrokenCache
    engine = tiny.make_engine(model, cache=cache)
    batch = [tiny.request([3 + i] * 40, 8, ignore_eos=True) for i in range(4)]
    assert tiny.generate(engine, batch) == [serial(one) for one in batch]
    end(engine)


@pytest.mark.parametrize("length", [-1, -100, 0, 7, 10**9])
def test_a_cache_that_lies_about_lengths_harms_nothing(
    model: Any, serial: Any, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    monkeypatch.setattr(BrokenCache, "match", lambda self, tokens, salt: Match(length, None))
    monkeypatch.setattr(BrokenCache, "restore", lambda self, match, pages: min(length, 0))
    engine = tiny.make_engine(model, cache=BrokenCache)
    one = tiny.request([5] * 40, 8, ignore_eos=True)
    assert tiny.generate(engine, [one]) == [serial(one)]
    end(engine)


def test_a_preempted_sequence_does_not_call_its_own_pages_cached(model: Any, serial: Any) -> None:
    engine = tiny.make_engine(model, cache=Memory, max_context=96, kv_tokens=128)
    batch = [tiny.request([3 + i] * 40, 50, seed=i, ignore_eos=True) for i in range(4)]

    async def run() -> list[list[Output]]:
        return await asyncio.gather(*(within(tiny.collect(engine, one)) for one in batch))

    replies = asyncio.run(run())
    assert engine.status().preemptions > 0
    assert [tiny.tokens_of(outputs) for outputs in replies] == [serial(one) for one in batch]
    assert [outputs[-1].usage.cached_tokens for outputs in replies if outputs[-1].usage] == [0] * 4
    end(engine)


class BrokenText:
    """A text that breaks at its third token."""

    stopped = False

    def __init__(self) -> None:
        self.seen = 0

    def push(self, token_id: int) -> str:
        self.seen += 1
        if self.seen == 3:
            raise ValueError("no such text")
        return "x"

    def finish(self) -> str:
        return ""


def test_a_request_that_breaks_takes_no_batch_mate_with_it(model: Any, serial: Any) -> None:
    engine = tiny.make_engine(model)
    good = tiny.request([3, 4, 5], 30, temperature=0.8, seed=1, ignore_eos=True)

    async def run() -> list[list[Output]]:
        bad = [tiny.request([9], 20, text=BrokenText(), ignore_eos=True) for _ in range(5)]
        return await asyncio.gather(*(within(tiny.collect(engine, one)) for one in (good, *bad)))

    first, *others = asyncio.run(run())
    assert tiny.tokens_of(first) == serial(good)
    for outputs in others:
        assert outputs[-1].finish_reason == "error"
        assert "no such text" in outputs[-1].error
    assert engine.status().state == "ready"
    end(engine)


def test_submit_abort_and_stop_at_the_same_time_leave_no_stream_waiting(model: Any) -> None:
    """Threads with loops of their own submit and abort until the engine is stopped under them."""
    for round_ in range(6):
        engine = tiny.make_engine(model, max_sequences=3, max_queue=5)
        endings: list[str] = []
        faults: list[BaseException] = []

        async def one(rng: random.Random, engine: Engine = engine, endings: list[str] = endings) -> bool:
            try:
                stream = engine.submit(tiny.request([rng.randrange(3, 60)] * rng.randrange(1, 40), 30))
            except QueueFullError:
                await asyncio.sleep(0)
                return True
            except UnavailableError:
                return False
            for _ in range(rng.randrange(4)):
                if (await within(anext(stream))).finish_reason:
                    return True
            if rng.random() < 0.5:
                stream.abort()
            endings.append([o async for o in stream][-1].finish_reason or "none")
            return True

        def client(seed: int, faults: list[BaseException] = faults) -> None:
            rng = random.Random(seed)

            async def run() -> None:
                while await within(one(rng)):
                    pass

            try:
                asyncio.run(run())
            except BaseException as fault:
                faults.append(fault)

        threads = [threading.Thread(target=client, args=(round_ * 10 + i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(0.05 + 0.03 * round_)
        stoppers = [threading.Thread(target=engine.stop) for _ in range(3)]
        for thread in stoppers + threads:
            if thread in stoppers:
                thread.start()
        for thread in stoppers + threads:
            thread.join(DEADLINE_S)
            assert not thread.is_alive()
        assert faults == []
        assert set(endings) <= {"stop", "length", "abort"}
        end(engine)


def test_what_is_submitted_as_the_engine_ends_is_refused_not_forgotten(model: Any) -> None:
    """The state is checked first and the queue joined later; an end in between must not lose the request."""
    engine = tiny.make_engine(model)
    engine.stop()
    engine._state = "ready"  # as a caller saw it that was checked just before the end

    async def submit() -> None:
        engine.submit(tiny.request([3], 1))

    with pytest.raises(UnavailableError):
        asyncio.run(submit())


def test_an_engine_that_is_stopped_while_it_warms_up_never_becomes_ready(model: Any) -> None:
    class Slow:
        info, row_invariant, nbytes = model.info, model.row_invariant, model.nbytes

        def forward(self, batch: Any, pools: Any) -> Any:
            time.sleep(0.2)
            return model.forward(batch, pools)

    engine = tiny.make_engine(Slow(), start=False)
    refusals: list[BaseException] = []

    def start() -> None:
        try:
            engine.start()
        except UnavailableError as refusal:
            refusals.append(refusal)

    starting = threading.Thread(target=start)
    starting.start()
    time.sleep(0.1)
    engine.stop()
    starting.join(DEADLINE_S)
    assert len(refusals) == 1
    assert engine.status().state == "stopped"


def test_a_thread_that_ends_for_any_reason_ends_its_streams(model: Any) -> None:
    class Exits:
        info, row_invariant, nbytes = model.info, model.row_invariant, model.nbytes
        broken = False

        def forward(self, batch: Any, pools: Any) -> Any:
            if self.broken:
                raise SystemExit("native code gave up")
            return model.forward(batch, pools)

    exits = Exits()
    engine = tiny.make_engine(exits)
    exits.broken = True
    assert outputs_of(engine, tiny.request([3], 5))[-1].finish_reason == "error"
    assert engine.status().state == "failed"
    with pytest.raises(UnavailableError, match="native code gave up"):
        outputs_of(engine, tiny.request([3], 5))
    engine.stop()


def test_with_no_queue_the_slots_are_still_served(model: Any) -> None:
    engine = tiny.make_engine(model, max_queue=0, max_sequences=2)

    async def run() -> None:
        streams = [engine.submit(tiny.request([3], 20, ignore_eos=True)) for _ in range(2)]
        with pytest.raises(QueueFullError):
            engine.submit(tiny.request([3], 1))
        for stream in streams:
            assert [o async for o in stream][-1].finish_reason == "length"

    asyncio.run(run())
    end(engine)


def test_a_burst_that_fits_the_slots_is_not_refused(model: Any) -> None:
    engine = tiny.make_engine(model, max_queue=1, max_sequences=8)
    batch = [tiny.request([3 + i], 5, ignore_eos=True) for i in range(9)]
    assert [len(tokens) for tokens in tiny.generate(engine, batch)] == [5] * 9
    end(engine)


def test_no_tokens_at_all_is_refused(engine: Engine) -> None:
    with pytest.raises(RequestError) as caught:
        outputs_of(engine, tiny.request([3], 0))
    assert caught.value.param == "max_tokens"


@pytest.mark.parametrize("draft", [True, False])
def test_a_stop_string_inside_an_accepted_draft_ends_the_text_there(model: Any, draft: bool) -> None:
    """The bias makes the model repeat one letter, so that whole drafts are accepted and the stop falls within one."""
    tokenizer = byte_tokenizer()
    letter = tokenizer.encode("A").ids[0]
    assert letter < tiny.VOCAB
    engine = tiny.make_engine(model)
    for length in range(2, 13):
        one = tiny.request(
            [letter] * 12,
            40,
            logit_bias={letter: 100.0},
            draft=draft,
            logprobs=0,
            text=Detokenizer(tokenizer, ["A" * length]),
        )
        outputs = outputs_of(engine, one)
        last = outputs[-1]
        assert "".join(o.text for o in outputs) == ""
        assert last.finish_reason == "stop"
        assert last.usage is not None
        assert last.usage.completion_tokens == length == len(tiny.tokens_of(outputs))
        assert len([entry for o in outputs for entry in o.logprobs]) == length
        assert last.usage.accepted_tokens <= min(last.usage.drafted_tokens, length)
        assert bool(last.usage.accepted_tokens) == (draft and length > 1 and last.usage.drafted_tokens > 0)
    end(engine)


def test_preemption_in_mid_draft_repeats_and_loses_nothing(model: Any, serial: Any) -> None:
    """Texts that repeat, so that drafts are long and accepted, in a pool that holds a third of them."""
    engine = tiny.make_engine(model, NgramDrafter, max_context=96, kv_tokens=160, draft_depth=7)
    batch = [
        tiny.request([10 + i, 11, 12, 13] * 4, 79, logit_bias={11: 25.0, 12: 25.0}, seed=i, ignore_eos=True)
        for i in range(6)
    ]
    assert tiny.generate(engine, batch) == [serial(one) for one in batch]
    status = engine.status()
    assert status.preemptions > 0
    assert status.accepted_tokens > 50
    end(engine)


def test_a_preempted_sequence_is_not_overtaken_for_ever(model: Any) -> None:
    """While short requests keep coming, the long one that needs the whole pool still ends."""
    engine = tiny.make_engine(model, max_context=96, kv_tokens=96, max_sequences=4, max_queue=100)

    async def run() -> int:
        long = asyncio.ensure_future(tiny.collect(engine, tiny.request([5] * 20, 76, ignore_eos=True)))
        served = 0

        async def short(seed: int) -> None:
            nonlocal served
            while not long.done():
                await tiny.collect(engine, tiny.request([seed] * 15, 20, ignore_eos=True))
                served += 1

        shorts = [asyncio.ensure_future(short(20 + i)) for i in range(5)]
        assert (await within(long))[-1].finish_reason == "length"
        await asyncio.gather(*shorts)
        return served

    assert asyncio.run(run()) > 0
    assert engine.status().preemptions > 0
    end(engine)


def test_totals_never_fall_while_requests_end(model: Any) -> None:
    engine = tiny.make_engine(model)
    seen: list[tuple[int, int]] = []
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            status = engine.status()
            seen.append((status.prompt_tokens, status.generated_tokens))
            time.sleep(0.0002)  # or the engine's thread would hardly get the interpreter

    watching = threading.Thread(target=watch)
    watching.start()
    for start in range(3):
        tiny.generate(engine, [tiny.request([3 + i + start] * 5, 1 + i, ignore_eos=True) for i in range(12)])
    done.set()
    watching.join()
    assert all(a[0] <= b[0] and a[1] <= b[1] for a, b in itertools.pairwise(seen))
    end(engine)


def test_ngram_memory_stays_within_what_it_announces(model: Any) -> None:
    """On a long text without repetition, where every n-gram is new, and nothing stays after it is forgotten."""
    drafter = NgramDrafter(model.info, {})
    rng = random.Random(1)
    tokens = [rng.randrange(100_000) for _ in range(30_000)]
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for start in range(0, len(tokens), 100):
        drafter.observe(1, start, tokens[start : start + 100], {})
    used = tracemalloc.get_traced_memory()[0] - before
    drafter.forget(1)
    left = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    print(f"{used / len(tokens):.0f} bytes a token, announced {drafter.memory_bytes(1)}")
    assert used <= drafter.memory_bytes(len(tokens))
    assert left < 0.05 * used


def test_ngram_proposals_on_a_long_text_are_quick(model: Any) -> None:
    drafter = NgramDrafter(model.info, {})
    drafter.observe(1, 0, list(range(50_000)), {})
    started = time.monotonic()
    for pending in range(1000):
        drafter.propose(1, pending, 4)
    assert time.monotonic() - started < 1
