"""The same request gives the same tokens alone, in any batch, drafted, after a preemption, and from the cache."""

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from glmserve.api import Draft, Match, Pages, PrefixCache
from glmserve.engine.drafters import NgramDrafter, NoDrafter
from glmserve.engine.engine import Engine
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from . import tiny

slow_ok = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))


class Garbage(NoDrafter):
    """Proposes nonsense of every kind, and sometimes breaks."""

    name = "garbage"

    def propose(self, sequence: int, pending: int, depth: int) -> Draft:
        chance = random.Random(pending * 31 + depth)
        if chance.random() < 0.1:
            raise RuntimeError("broken on purpose")
        wild = [chance.choice([chance.randrange(tiny.VOCAB), -1, 10**9]) for _ in range(depth + 3)]
        return Draft(tuple(wild))


class Memory(PrefixCache):
    """Keeps copies of page images by their token prefix."""

    name = "memory"

    def __init__(self, pages: Pages, fingerprint: str, options: Mapping[str, Any]) -> None:
        self._pages = pages
        self.images: dict[tuple[int, ...], dict[str, Any]] = {}

    def match(self, tokens: Sequence[int], salt: bytes) -> Match:
        length = 0
        while tuple(tokens[: length + self._pages.page_tokens]) in self.images and length < len(tokens):
            length += self._pages.page_tokens
        return Match(length, tuple(tokens[:length]))

    def restore(self, match: Match, pages: Sequence[int]) -> int:
        size = self._pages.page_tokens
        for i, page in enumerate(pages):
            for name, saved in self.images[match.handle[: (i + 1) * size]].items():
                self._pages.image(page)[name].copy_(saved)
        return len(pages) * size

    def store(self, tokens: Sequence[int], salt: bytes, pages: Sequence[int]) -> None:
        size = self._pages.page_tokens
        for i, page in enumerate(pages):
            image = {name: tensor.clone() for name, tensor in self._pages.image(page).items()}
            self.images.setdefault(tuple(tokens[: (i + 1) * size]), image)

    def evict(self, nbytes: int) -> int:
        return 0

    def stats(self) -> Mapping[str, float]:
        return {"pages": float(len(self.images))}


prompts = st.lists(st.integers(3, tiny.VOCAB - 1), min_size=1, max_size=70)
requests = st.builds(
    tiny.request,
    prompts,
    max_tokens=st.integers(1, 30),
    temperature=st.sampled_from([0.0, 0.7, 1.5]),
    top_p=st.sampled_from([1.0, 0.9]),
    top_k=st.sampled_from([0, 20]),
    frequency_penalty=st.sampled_from([0.0, 0.5]),
    repetition_penalty=st.sampled_from([1.0, 1.2]),
    seed=st.integers(0, 2**64 - 1),
    draft=st.booleans(),
)


@pytest.fixture(scope="module")
def alone(model: Any) -> Any:
    """Serial decoding, one request at a time."""
    engine = tiny.make_engine(model, NoDrafter)
    yield lambda one: tiny.generate(engine, [one])[0]
    engine.stop()


@slow_ok
@given(st.lists(requests, min_size=1, max_size=8))
def test_alone_and_batched_and_drafted(engine: Engine, alone: Any, batch: list[Any]) -> None:
    assert tiny.generate(engine, batch) == [alone(one) for one in batch]


@slow_ok
@given(st.lists(requests, min_size=1, max_size=4))
def test_garbage_drafts_change_nothing(model: Any, alone: Any, batch: list[Any]) -> None:
    engine = tiny.make_engine(model, Garbage)
    try:
        assert tiny.generate(engine, batch) == [alone(one) for one in batch]
    finally:
        engine.stop()


@pytest.mark.parametrize("drafter", [NoDrafter, NgramDrafter, Garbage])
def test_preempted_sequences_lose_nothing(model: Any, alone: Any, drafter: Any) -> None:
    engine = tiny.make_engine(model, drafter, max_context=96, kv_tokens=128)
    rng = random.Random(5)
    batch = [
        tiny.request([rng.randrange(3, tiny.VOCAB) for _ in range(20)], 70, temperature=0.9, seed=i, ignore_eos=True)
        for i in range(5)
    ]
    assert tiny.generate(engine, batch) == [alone(one) for one in batch]
    assert engine.status().preemptions > 0
    assert engine.status().pages_free == engine.status().pages_total
    engine.stop()
    assert engine.check_integrity() == []


@slow_ok
@given(prompts, prompts, prompts)
def test_cached_equals_recomputed(
    model: Any, alone: Any, shared: list[int], first: list[int], second: list[int]
) -> None:
    engine = tiny.make_engine(model, NgramDrafter, cache=Memory)
    try:
        for prompt in (shared + first, shared + second, shared + first, shared):
            one = tiny.request(prompt, 12)
            assert tiny.generate(engine, [one])[0] == alone(one)
    finally:
        engine.stop()


def test_cached_tokens_are_the_truth(model: Any) -> None:
    engine = tiny.make_engine(model, cache=Memory)
    prompt = list(range(3, 43))
    for expected in (0, 32):  # 40 tokens hold two whole chunks of 16
        outputs = asyncio.run(_outputs(engine, tiny.request(prompt, 4)))
        assert outputs[-1].usage.cached_tokens == expected
    engine.stop()


async def _outputs(engine: Engine, one: Any) -> list[Any]:
    return await tiny.collect(engine, one)


def test_drafts_are_accepted_where_text_repeats(engine: Engine, alone: Any) -> None:
    one = tiny.request([5, 6, 7, 8] * 4, 40, logit_bias={5: 60.0}, ignore_eos=True)
    outputs = asyncio.run(_outputs(engine, one))
    usage = outputs[-1].usage
    assert usage.accepted_tokens > 10
    assert tiny.tokens_of(outputs) == alone(one)
    assert len(outputs) < usage.completion_tokens
