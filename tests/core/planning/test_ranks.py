"""What the plan says of a rank is what ranks hold and send."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from glmserve.api import ConfigError, Model, Parallel
from glmserve.models.dense import Dense
from glmserve.models.glm_moe_dsa import GlmMoeDsa
from glmserve.models.glm_moe_dsa.config import read_config
from glmserve.models.llama import Llama
from glmserve.planning.cache import CacheEntry, glm_cache, paged_cache
from glmserve.planning.components import Component, component_of, layer_of
from glmserve.planning.traffic import glm_traffic
from glmserve.planning.weights import VECTOR_BYTES, Weights, weigh
from glmserve.store.checkpoint import open_checkpoint

from ..models.glm_ranks import GRID, Spread, in_cuts, page_tables
from ..models.paged import load, write_random
from ..models.ranks import ThreadGroup, on_ranks
from ..models.seeded import golden_config, write_seeded
from ..models.test_llama_ranks import MODELS

NOT_LINEAR = {Component.NORMS, Component.EMBEDDING, Component.MTP}
"""What is looked up or kept beside the linear layers, and the drafter's."""
ODD = {
    "num_attention_heads": 7,
    "num_key_value_heads": 7,
    "moe_intermediate_size": 27,
    "intermediate_size": 129,
    "vocab_size": 511,
}


@pytest.fixture(scope="module", params=["golden", "odd"])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("glm")
    write_seeded(made, golden_config() | (ODD if request.param == "odd" else {}))
    return made


def linear_bytes(weights: tuple[Weights, ...]) -> int:
    return sum(part.rank_bytes for part in weights if part.component not in NOT_LINEAR)


def token_bytes(model: Model) -> int:
    return sum(paged.token_bytes for paged in model.info.paged)


def planned_token_bytes(cache: tuple[CacheEntry, ...], ranks: int, context: int) -> float:
    return sum(entry.rank_token_bytes(ranks, context) for entry in cache)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_a_rank_of_glm_holds_what_is_planned(directory: Path, ranks: int) -> None:
    checkpoint = open_checkpoint(directory)
    glm = read_config(checkpoint.config)
    planned = weigh(checkpoint, ranks, Dense(), glm)

    def vectors(*components: Component) -> int:
        """Bytes of those beside linear layers, which no figure of a model counts."""
        named = [(info, component_of(layer_of(name), glm.layers)) for name, info in checkpoint.tensors.items()]
        return VECTOR_BYTES * sum(info.shape[0] for info, part in named if part in components and len(info.shape) == 1)

    def held(rank: int) -> tuple[int, int]:
        model = spread.ranks[rank].model
        return model.nbytes, model.load_next_token_layer().nbytes

    spread = Spread(directory, ranks)
    trunk, drafts = (max(found) for found in zip(*map(held, range(ranks)), strict=True))
    assert linear_bytes(planned) == trunk + vectors(Component.ROUTER, Component.INDEXER)
    (mtp,) = (part.rank_bytes for part in planned if part.component is Component.MTP)
    assert mtp == drafts + vectors(Component.MTP)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_a_rank_of_llama_holds_what_is_planned(tmp_path: Path, ranks: int, name: str) -> None:
    write_random(tmp_path, **MODELS[name])
    checkpoint = open_checkpoint(tmp_path)
    planned = weigh(checkpoint, ranks, Dense(), None)
    tied = MODELS[name].get("tie_word_embeddings")
    table = sum(part.rank_bytes for part in planned if part.component is Component.EMBEDDING)
    models = on_ranks(ranks, lambda group: load(tmp_path, group=group))
    found = max(model.nbytes for model in models)
    rest = linear_bytes(planned) + (table if tied else 0)
    kv_heads = MODELS[name].get("num_key_value_heads", 2)
    if ranks <= kv_heads:
        assert rest == found
    else:  # the rank with the most heads need not be the one with the most columns
        assert found <= rest < 1.1 * found
    cache = paged_cache(Llama().describe(checkpoint.config, "float32").paged)
    assert planned_token_bytes(cache, ranks, 1) == pytest.approx(max(map(token_bytes, models)))


@pytest.mark.parametrize("sizes", GRID, ids=str)
def test_a_token_of_glm_takes_and_sends_what_is_planned(directory: Path, sizes: tuple[int, int]) -> None:
    ranks, context = sizes
    spread = Spread(directory, *sizes)
    glm = spread.ranks[0].model.config
    cache = glm_cache(glm, "float32", mtp=False)
    assert planned_token_bytes(cache, ranks, context) * context == token_bytes(spread.ranks[0].model)
    prompt, (tables, pages) = [5] * 24, page_tables(1, 24)
    *before, last = in_cuts(prompt, [(23, True), (1, False)], tables[0])
    pools = spread.pools(pages)
    spread.logits(pools, before)
    groups = [rank.parallel.group for rank in spread.ranks]
    for group in groups:
        if isinstance(group, ThreadGroup):
            group.names.clear()
            group.sent_bytes.clear()
    spread.logits(pools, [last])
    counts: Counter[str] = Counter()
    sent: Counter[str] = Counter()
    for group in groups[:2]:  # the first sends no logits, and the most of all else
        if isinstance(group, ThreadGroup):
            counts |= Counter(group.names)
            sent |= group.sent_bytes
    made = {"attention": "layer sums", "mlp": "layer sums", "partials": "attention merge"}
    made |= {"candidates": "index candidates", "queries": "queries", "logits": "logits"}
    planned = {one.name: one for one in glm_traffic(glm, ranks, context)}
    assert {one.name: one.count for one in planned.values()} == dict(by(made, counts))
    for name, found in by(made, sent).items():
        # Where heads or tokens do not divide, the plan takes every rank for the one that has most of them.
        uneven = name in ("logits", "queries", "attention merge") and (glm.heads % ranks or glm.vocab_size % ranks)
        assert (0.6 if uneven else 1) * planned[name].token_sent_bytes <= found <= planned[name].token_sent_bytes


def by(names: dict[str, str], counts: Counter[str]) -> Counter[str]:
    found: Counter[str] = Counter()
    for name, count in counts.items():
        found[names[name]] += count
    return found


def test_the_drafter_of_every_rank_keeps_all_positions(directory: Path) -> None:
    spread = Spread(directory, 2, 2)
    glm = spread.ranks[0].model.config
    layers = spread.each(lambda rank: rank.model.load_next_token_layer().paged)
    own = [entry for entry in glm_cache(glm, "float32", mtp=True) if entry.replicated]
    for paged in layers:
        assert sum(tensor.token_bytes for tensor in paged) == planned_token_bytes(tuple(own), 2, 2)


def test_a_loaded_model_is_planned_with_the_family_that_loads_it(directory: Path) -> None:
    """The plan's cuts are those of the family: one more rank than heads is refused by both in the same words."""
    checkpoint = open_checkpoint(directory)
    glm = read_config(checkpoint.config)
    words = rf"^parallel\.tensor is {glm.heads + 1}, but the model has only {glm.heads} \w+ heads to spread"
    with pytest.raises(ConfigError, match=words):
        weigh(checkpoint, glm.heads + 1, Dense(), glm)
    info = GlmMoeDsa().describe(checkpoint.config, "float32")
    with pytest.raises(ConfigError, match=words):
        GlmMoeDsa().load(checkpoint, Dense(), info, Parallel(ThreadGroup(0, glm.heads + 1, {})))
