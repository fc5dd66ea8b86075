"""An engine on several ranks: the same tokens on any path, and ranks that come apart are found at once."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest
from glmserve.api import Draft, Drafter, Model, ModelInfo, Parallel, RankError
from glmserve.engine.drafters import NgramDrafter, NoDrafter
from glmserve.engine.mtp import MtpDrafter
from glmserve.engine.scheduler import EngineOptions
from glmserve.models.dense import Dense
from glmserve.models.glm_moe_dsa import GlmMoeDsa
from glmserve.models.glm_moe_dsa.source import Source
from glmserve.models.llama import Llama
from glmserve.selftest import check_probe, probe
from glmserve.store.checkpoint import open_checkpoint
from glmserve_model_tiny_glm import CHECKPOINT

from ..cluster.ranks import meshes
from . import ranked, tiny
from .ranked import logits_of, running_engine, running_ranks


def glm(parallel: Parallel) -> Model:
    opened, family = open_checkpoint(CHECKPOINT), GlmMoeDsa()
    return family.load(opened, Dense(), family.describe(opened.config, "float32"), parallel)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Any:
    directory = tiny.write_checkpoint(tmp_path_factory.mktemp("llama"))

    def load(parallel: Parallel) -> Model:
        opened, family = open_checkpoint(directory), Llama()
        return family.load(opened, Dense(), family.describe(opened.config, "float32"), parallel)

    return load


class MostlyRight(NoDrafter):
    """Knows what comes, and spoils every fifth draft."""

    name = "mostly-right"
    answers: ClassVar[list[list[int]]] = []
    """Prompt and completion."""

    def __init__(self, target: ModelInfo, options: Mapping[str, Any]) -> None:
        self._told: dict[int, list[int]] = {}

    def observe(self, sequence: int, start: int, tokens: Sequence[int], taps: Mapping[int, Any]) -> None:
        self._told[sequence] = [*self._told.get(sequence, ())[:start], *tokens]

    def propose(self, sequence: int, pending: int, depth: int) -> Draft:
        known = [*self._told[sequence], pending]
        coming = next((a[len(known) : len(known) + depth] for a in self.answers if a[: len(known)] == known), [])
        return Draft(tuple(0 if (len(known) + i) % 5 == 0 else token for i, token in enumerate(coming)))


def asked(vocab: int, count: int, longest: int, seed: int) -> list[Any]:
    rng = random.Random(seed)
    return [
        tiny.request(
            [rng.randrange(3, vocab) for _ in range(rng.randint(1, longest))],
            rng.randint(1, 24),
            temperature=rng.choice([0.0, 0.8]),
            seed=i,
            ignore_eos=True,
        )
        for i in range(count)
    ]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_llama_gives_the_same_tokens_alone_together_and_drafted(llama: Any, size: int) -> None:
    requests = asked(tiny.VOCAB, 6, 60, seed=size)
    sizes = {"max_context": 256, "kv_tokens": 1024, "page_tokens": 8, "prefill_chunk": 16}
    with running_engine(size, 1, llama, NoDrafter, **sizes) as engine:
        alone = [tiny.generate(engine, [one])[0] for one in requests]
        assert tiny.generate(engine, requests) == alone
    MostlyRight.answers = [[*one.prompt, *tokens] for one, tokens in zip(requests, alone, strict=True)]
    with running_engine(size, 1, llama, MostlyRight, **sizes) as engine:
        assert tiny.generate(engine, requests) == alone
        assert engine.status().accepted_tokens > sum(map(len, alone)) / 4


GRID = [(2, 1), (2, 2), (3, 3), (4, 2), (4, 4)]
USUAL = [(2, 2, MostlyRight), (4, 4, MtpDrafter)]


@pytest.mark.parametrize(
    ("size", "context", "drafter"),
    [
        pytest.param(*size, drafter, marks=() if (*size, drafter) in USUAL else pytest.mark.slow)
        for size in GRID
        for drafter in (MostlyRight, MtpDrafter)
    ],
)
def test_glm_gives_the_same_tokens_alone_together_and_drafted(size: int, context: int, drafter: type[Drafter]) -> None:
    """Prompts beyond the selection of 256 tokens, whose pages come in an order of their own."""
    requests = asked(900, 4, 400, seed=size)
    with running_engine(size, context, glm, NoDrafter) as engine:
        alone = [tiny.generate(engine, [one])[0] for one in requests]
    MostlyRight.answers = [[*one.prompt, *tokens] for one, tokens in zip(requests, alone, strict=True)]
    with running_engine(size, context, glm, drafter) as engine:
        assert tiny.generate(engine, requests) == alone
        status = engine.status()
    assert [rank.steps for rank in status.ranks] == [status.ranks[0].steps] * size
    assert len({rank.exchanges for rank in status.ranks}) == 1
    assert status.drafted_tokens > 0
    assert drafter is MtpDrafter or status.accepted_tokens > sum(map(len, alone)) / 4


def test_exchanges_over_sockets_are_counted_alike_on_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranked, "groups", meshes)
    with running_engine(4, 2, glm, NoDrafter) as engine:
        counts = []
        for request in asked(900, 2, 300, seed=1):
            tiny.generate(engine, [request])
            counts.append({rank.exchanges for rank in engine.status().ranks})
    assert [len(count) for count in counts] == [1, 1]
    assert 0 < min(counts[0]) < min(counts[1])


def test_a_preempted_sequence_goes_on_with_a_page_table_of_its_own(llama: Any) -> None:
    requests = [tiny.request(one.prompt[:20], 70, seed=i, ignore_eos=True) for i, one in enumerate(asked(60, 5, 60, 1))]
    sizes = {"max_context": 96, "kv_tokens": 128, "page_tokens": 8, "prefill_chunk": 16}
    with running_engine(2, 1, llama, NgramDrafter, **sizes) as engine:
        alone = [tiny.generate(engine, [one])[0] for one in requests]
        assert tiny.generate(engine, requests) == alone
        assert engine.status().preemptions > 0


def spoilt(load: Any, rank: int, spoil: Any) -> Any:
    def broken(parallel: Parallel) -> Model:
        model = load(parallel)
        if parallel.rank == rank:
            spoil(model)
        return model  # type: ignore[no-any-return]

    return broken


def test_ranks_whose_arithmetic_parts_are_found_after_that_step(llama: Any) -> None:
    def spoil(model: Any) -> None:
        model._embedding = lambda ids, look=model._embedding: look(ids) * (1 + 1e-6)

    options = EngineOptions(max_context=64, kv_tokens=64, page_tokens=8, prefill_chunk=16)
    with (
        running_ranks(3, 1, spoilt(llama, 2, spoil), NoDrafter, options) as ranks,
        pytest.raises(RankError, match=r"^rank 2 computed something else than rank 0 after 1 steps$") as failure,
    ):
        logits_of(ranks, probe(tiny.VOCAB, 8))
    assert failure.value.ranks == (2,)


@pytest.mark.parametrize("size", [2, 4])
def test_a_layer_cut_wrong_is_found_by_the_test_at_the_start(llama: Any, size: int) -> None:
    """Every rank adds up the same wrong sum, which no comparison between them can see."""

    def spoil(model: Any) -> None:
        layer = model._layers[1]
        layer._down = lambda x, down=layer._down: down(x.flip(1))

    options = EngineOptions(max_context=64, kv_tokens=64, page_tokens=8, prefill_chunk=16)
    with running_ranks(1, 1, llama, NoDrafter, options) as one:
        reference = logits_of(one, probe(tiny.VOCAB, 8))
    with running_ranks(size, 1, llama, NoDrafter, options) as ranks:
        check_probe(ranks, reference)
    with (
        running_ranks(size, 1, spoilt(llama, 1, spoil), NoDrafter, options) as ranks,
        pytest.raises(RankError, match=rf"^The self-test failed: the logits of {size} ranks differ from those of one"),
    ):
        check_probe(ranks, reference)


def test_the_probe_of_one_rank_is_what_several_get_on_glm() -> None:
    options = EngineOptions(max_context=96, kv_tokens=96, page_tokens=24, prefill_chunk=48)
    with running_ranks(1, 1, glm, NoDrafter, options) as one:
        reference = logits_of(one, probe(1024, 24))
    for size, context in ((2, 2), (4, 4), (3, 1)):
        with running_ranks(size, context, glm, NoDrafter, options) as ranks:
            check_probe(ranks, reference)
            found = logits_of(ranks, probe(1024, 24))
        assert float((found - reference).abs().max()) < 1e-4


def test_experts_that_every_rank_has_whole_are_found_by_the_test_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensor parallelism that is silently off: what should be a rank's part of a sum is the whole of it."""
    options = EngineOptions(max_context=96, kv_tokens=96, page_tokens=24, prefill_chunk=48)
    with running_ranks(1, 1, glm, NoDrafter, options) as one:
        reference = logits_of(one, probe(1024, 24))
    monkeypatch.setattr(Source, "own", lambda self, columns: range(columns))
    with (
        running_ranks(4, 4, glm, NoDrafter, options) as ranks,
        pytest.raises(RankError, match=r"^The self-test failed: the logits of 4 ranks differ from those of one"),
    ):
        check_probe(ranks, reference)
