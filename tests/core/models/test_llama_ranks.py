"""A llama whose layers are cut over ranks computes what one rank computes, and every rank its own part of it."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from glmserve.api import ConfigError, Model
from glmserve.models.gguf import Gguf
from glmserve.store.checkpoint import open_checkpoint

from .counting import Counting
from .paged import SHAPE, VOCABULARY, forward, load, load_from, new_pools, output, write_random
from .ranks import on_ranks
from .test_alone import PAGES, WINDOW, lonely, page_table, window
from .test_parity import CUTS, TOKENS, TOLERANCE, logits_in_cuts

RANKS = [1, 2, 3, 4]
SLOW = pytest.mark.slow
MODELS: dict[str, dict[str, Any]] = {
    "6 and 2 heads": {},
    "9 and 3 heads, tied": {
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "hidden_size": 54,
        "head_dim": 10,
        "intermediate_size": 77,
        "tie_word_embeddings": True,
    },
    "4 and 4 heads, biases": {
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "attention_bias": True,
        "mlp_bias": True,
    },
    "8 and 1 heads, own head_dim": {"num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 16},
}
IDS = torch.randint(0, VOCABULARY, (TOKENS,), generator=torch.Generator().manual_seed(1))
LAYERS = SHAPE["num_hidden_layers"]


@pytest.fixture(scope="module", params=MODELS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.Tensor]:
    """A checkpoint, and the logits of IDS by transformers."""
    directory = tmp_path_factory.mktemp("model")
    reference = write_random(directory, **MODELS[request.param])
    with torch.inference_mode():
        return directory, reference(IDS[None]).logits[0]


def spread(directory: Path, ranks: int, work: Callable[[Model, Any], Any]) -> list[Any]:
    """work(model, group) on each rank."""
    return on_ranks(ranks, lambda group: work(load(directory, group=group), group))


@pytest.mark.parametrize("ranks", RANKS)
def test_logits_are_those_of_transformers_and_of_one_rank_whole_in_chunks_and_cached(
    made: tuple[Path, torch.Tensor], ranks: int
) -> None:
    directory, expected = made
    alone = load(directory)

    def work(model: Model, group: Any) -> list[torch.Tensor]:
        return [logits_in_cuts(model, IDS.tolist(), cuts) for cuts in CUTS.values()]

    first, *others = spread(directory, ranks, work)
    for logits, cuts in zip(first, CUTS.values(), strict=True):
        assert (logits - expected).abs().max() < TOLERANCE
        assert (logits - logits_in_cuts(alone, IDS.tolist(), cuts)).abs().max() < TOLERANCE
    assert all(logits.shape == (0, VOCABULARY) for rank in others for logits in rank)


@pytest.mark.parametrize("ranks", RANKS[1:])
def test_a_decode_row_has_the_same_bits_alone_in_a_batch_and_in_a_window(
    made: tuple[Path, torch.Tensor], ranks: int
) -> None:
    choose = random.Random(2)
    segments = []
    for i in range(7):
        tokens = [choose.randrange(VOCABULARY) for _ in range(choose.choice((1, 3, WINDOW)))]
        segments.append(window(tokens, choose.randrange(180), page_table(choose, 6 * i, 6)))

    def work(model: Model, group: Any) -> tuple[torch.Tensor, torch.Tensor]:
        pools = new_pools(model, PAGES, seed=group.rank)
        alone = torch.cat([lonely(model, pools, rows) for rows in segments])
        return alone, forward(model, pools, *segments)

    alone, batched = spread(made[0], ranks, work)[0]
    assert alone.shape[1] == VOCABULARY
    assert torch.equal(batched, alone)


@pytest.mark.parametrize("chunk", [True, False], ids=["chunk", "decode rows"])
@pytest.mark.parametrize("ranks", RANKS)
def test_hidden_states_have_the_same_bits_on_all_ranks_and_so_have_taps(
    made: tuple[Path, torch.Tensor], ranks: int, chunk: bool
) -> None:
    taps = (0, LAYERS - 1, LAYERS)

    def work(model: Model, group: Any) -> Any:
        found = output(model, new_pools(model, 2), (IDS[:20].tolist(), 0, [1, 0], chunk), taps=taps)
        return found.hidden, found.taps

    (hidden, tapped), *others = spread(made[0], ranks, work)
    assert sorted(tapped) == sorted(taps)
    assert torch.equal(tapped[LAYERS - 1], hidden)
    for other, its in others:
        assert torch.equal(other, hidden)
        assert all(torch.equal(its[i], tapped[i]) for i in taps)


@pytest.mark.parametrize("ranks", RANKS[1:])
def test_all_ranks_make_the_same_exchanges_two_in_each_layer_and_one_for_the_logits(
    made: tuple[Path, torch.Tensor], ranks: int
) -> None:
    def work(model: Model, group: Any) -> list[str]:
        forward(model, new_pools(model, 1), ([1, 2, 3], 0, [0], True))
        names: list[str] = group.names
        return names

    assert spread(made[0], ranks, work) == [["attention", "mlp"] * LAYERS + ["logits"]] * ranks


@pytest.mark.parametrize("ranks", RANKS)
def test_each_rank_says_the_key_value_heads_it_keeps_and_holds_its_part_of_the_weights(
    made: tuple[Path, torch.Tensor], ranks: int
) -> None:
    whole = load(made[0])
    kv_heads, dim = whole.info.paged[0].per_token
    found = spread(made[0], ranks, lambda model, group: (model.info, model.nbytes))
    for info, _ in found:
        assert len({paged.per_token for paged in info.paged}) == 1
        assert [paged.name for paged in info.paged] == [paged.name for paged in whole.info.paged]
    kept = [info.paged[0].per_token[0] for info, _ in found]
    assert sum(kept) == max(kv_heads, ranks)
    # A key-value head that several ranks share is on each of them: a row of keys and of values for each of its dims.
    shared = (sum(kept) - kv_heads) * 2 * dim * LAYERS * whole.info.hidden_size * 4
    assert sum(nbytes for _, nbytes in found) == whole.nbytes + shared
    assert max(nbytes for _, nbytes in found) < whole.nbytes / ranks * 1.7


@pytest.mark.parametrize("ranks", RANKS)
def test_the_ranks_read_one_model_between_them(made: tuple[Path, torch.Tensor], ranks: int) -> None:
    """All of a matrix is read once, but for the key-value heads that ranks share; a tied head is the embedding's."""

    def work(group: Any) -> tuple[Counting, Model]:
        counting = Counting(open_checkpoint(made[0]))
        return counting, load_from(counting, group=group)

    found = on_ranks(ranks, work)
    stored, kv_heads = found[0][0].tensors, load(made[0]).info.paged[0].per_token[0]
    for name, info in stored.items():
        asked = [counting.asked[name] for counting, _ in found]
        if name == "model.embed_tokens.weight" and "lm_head.weight" in stored:
            assert asked == [0] * ranks
        elif ".k_proj.weight" in name or ".v_proj.weight" in name:
            assert sum(asked) == info.nbytes * max(kv_heads, ranks) // kv_heads
        elif len(info.shape) == 2:
            assert sum(asked) == info.nbytes
            assert max(asked) < info.nbytes / ranks * 1.7


@pytest.mark.parametrize("ranks", [1, 3])
def test_layers_that_are_read_at_each_call_have_the_same_bits_and_hold_nothing(
    made: tuple[Path, torch.Tensor], ranks: int
) -> None:
    def work(group: Any) -> tuple[torch.Tensor, torch.Tensor]:
        kept, read = (load(made[0], group=group, resident=resident) for resident in (True, False))
        assert (read.nbytes, read.row_invariant) == (0, False)
        assert kept.nbytes > 0
        cuts = CUTS["cached"]
        return logits_in_cuts(kept, IDS.tolist(), cuts), logits_in_cuts(read, IDS.tolist(), cuts)

    for kept, read in on_ranks(ranks, work):
        assert torch.equal(kept, read)


@pytest.mark.parametrize(
    ("changes", "ranks", "words"),
    [
        ({}, 7, "parallel.tensor is 7, but the model has only 6 query heads"),
        ({"intermediate_size": 3}, 4, "parallel.tensor is 4, but the model has only 3 intermediate columns"),
        ({"vocab_size": 2}, 3, "parallel.tensor is 3, but the model has only 2 tokens in its vocabulary"),
    ],
)
@pytest.mark.parametrize("resident", [True, False])
def test_more_ranks_than_parts_are_refused_in_a_sentence(
    tmp_path: Path, changes: dict[str, int], ranks: int, words: str, resident: bool
) -> None:
    write_random(tmp_path, **changes)
    with pytest.raises(ConfigError) as refusal:
        on_ranks(ranks, lambda group: load(tmp_path, group=group, resident=resident))
    assert str(refusal.value).startswith(words)


def test_a_cache_cut_by_positions_is_refused_in_a_sentence(tmp_path: Path) -> None:
    write_random(tmp_path)
    with pytest.raises(ConfigError, match=r"parallel\.context is 2, but family 'llama'"):
        on_ranks(2, lambda group: load(tmp_path, group=group, context=2))


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=SLOW), pytest.param(3, marks=SLOW), 4])
def test_smollm2_over_ranks_computes_what_one_rank_computes_up_to_rounding(smollm2: Path, ranks: int) -> None:
    """Nine query heads and three key-value heads, in four-bit blocks that the cuts of columns must keep whole."""
    ids = torch.randint(0, 49152, (96,), generator=torch.Generator().manual_seed(2)).tolist()
    cuts = [(64, True), (20, True), *[(1, False)] * 5, (7, False)]
    expected = logits_in_cuts(load(smollm2, Gguf), ids, cuts)
    logits = on_ranks(ranks, lambda group: logits_in_cuts(load(smollm2, Gguf, group), ids, cuts))[0]
    difference = (logits - expected).abs()
    print(f"{ranks} ranks: largest difference {difference.max():.2e} of logits up to {expected.abs().max():.1f}")
    assert (difference < TOLERANCE).float().mean() > 0.999
    assert difference.max() < 1e-5 * expected.abs().max()


@pytest.mark.slow
@pytest.mark.parametrize("ranks", RANKS[1:])
def test_smollm2_over_ranks_has_the_same_bits_alone_in_a_batch_and_in_a_window(smollm2: Path, ranks: int) -> None:
    segments = [window([100 + i], 150 + 11 * i, list(range(10 * i, 10 * i + 10))) for i in range(5)]
    segments.append(window(list(range(500, 508)), 90, [55, 51, 52, 58, 53]))

    def work(group: Any) -> list[torch.Tensor]:
        model = load(smollm2, Gguf, group)
        pools = new_pools(model, PAGES, seed=group.rank)
        alone = torch.cat([lonely(model, pools, rows) for rows in segments])
        return [alone, forward(model, pools, *segments), forward(model, pools, segments[-1])]

    alone, batched, last = on_ranks(ranks, work)[0]
    assert torch.equal(batched, alone)
    assert torch.equal(last, alone[-WINDOW:])
