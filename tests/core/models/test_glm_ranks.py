"""glm_moe_dsa on several ranks computes what it computes on one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from glmserve.api import ConfigError, Linear
from glmserve.models.glm_moe_dsa.call import new_call
from glmserve.models.glm_moe_dsa.layer import DecoderLayer
from glmserve.models.glm_moe_dsa.moe import Mixture

from .glm import prompt, recorded_sets
from .glm_ranks import GRID, PAGE_ENTRIES, Rank, Spread, batch_of, in_cuts, new_pools, page_tables
from .seeded import Tensors, golden_config, golden_outputs, write_seeded
from .test_glm_golden import CUTS, TOLERANCE, golden_sets

NEXTN_CUTS = {"whole": [(23, True)], "chunked": [(10, True), (13, True)], "decoded alone": [(1, False)] * 23}
WHOLE = [(24, True)]
KV_TYPES = ["float32", "bfloat16", "float8_e4m3"]


@pytest.fixture(scope="module")
def golden() -> Tensors:
    return golden_outputs()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("golden")
    write_seeded(made, golden_config())
    return made


@pytest.fixture(scope="module", params=GRID, ids=str)
def spread(request: pytest.FixtureRequest, directory: Path) -> Spread:
    return Spread(directory, *request.param)


@pytest.mark.parametrize("cuts", CUTS)
def test_logits_and_selections_are_the_golden_ones(spread: Spread, golden: Tensors, cuts: str) -> None:
    tables, pages = page_tables(1, 24)
    calls = in_cuts(golden["prompt_ids"].tolist(), CUTS[cuts], tables[0])
    layers = [layer for rank in spread.ranks for layer in rank.model.layers]
    with recorded_sets(spread.ranks[0].model, 24, layers) as sets:
        found = spread.logits(spread.pools(pages), calls)
    assert (found - golden["logits"]).abs().max() < TOLERANCE
    assert sets == golden_sets(golden) * len(spread.ranks)


def test_hidden_states_and_taps_have_the_same_bits_on_every_rank(spread: Spread, golden: Tensors) -> None:
    tables, pages = page_tables(1, 24)
    wanted = tuple(range(8))
    calls = in_cuts(golden["prompt_ids"].tolist(), CUTS["cached"], tables[0])
    first, *others = spread.outputs(spread.pools(pages), calls, wanted)
    for i, out in enumerate(first):
        assert tuple(out.taps) == wanted
        assert torch.equal(out.hidden, out.taps[6])
        for other in others:
            assert torch.equal(other[i].hidden, out.hidden)
            assert all(torch.equal(other[i].taps[layer], out.taps[layer]) for layer in wanted)
    for layer in range(7):
        found = torch.cat([out.taps[layer if layer < 6 else 7] for out in first])
        assert (found - golden[f"hidden.{layer + 1}"]).abs().max() < TOLERANCE, f"layer {layer}"


@pytest.mark.parametrize("cuts", NEXTN_CUTS)
def test_the_next_token_layer_drafts_the_golden_ones_on_every_rank(spread: Spread, golden: Tensors, cuts: str) -> None:
    """Its own caches hold every position on every rank, however the model's are dealt."""
    ids = golden["prompt_ids"].tolist()
    tables, pages = page_tables(1, 24)
    (table,) = tables
    trunk = spread.outputs(spread.pools(pages), in_cuts(ids, WHOLE, table), (7,))

    def draft(rank: Rank) -> tuple[torch.Tensor, torch.Tensor]:
        layer = rank.model.load_next_token_layer()
        hidden, pools = trunk[rank.parallel.rank][0].taps[7], new_pools(layer.paged, pages)
        out, start = [], 0
        for call in in_cuts(ids[1:], NEXTN_CUTS[cuts], table):
            rows = len(call[0][0])
            out.append(layer.forward(batch_of(call), hidden[start : start + rows], pools))
            start += rows
        return torch.cat([one.logits for one in out]), torch.cat([one.hidden for one in out])

    for logits, hidden in spread.each(draft):
        assert (logits - golden["mtp_logits"]).abs().max() < TOLERANCE
        assert (hidden - golden["mtp_hidden_normed"]).abs().max() < TOLERANCE


@pytest.mark.parametrize("sizes", [(1, 1), (3, 3)], ids=str)
def test_layers_that_are_read_when_called_have_the_bits_of_those_that_are_kept(
    directory: Path, sizes: tuple[int, int]
) -> None:
    tables, pages = page_tables(1, 24)
    calls = in_cuts(prompt(24), CUTS["cached"], tables[0])
    kept, read = Spread(directory, *sizes), Spread(directory, *sizes, resident=False)
    assert torch.equal(read.logits(read.pools(pages), calls), kept.logits(kept.pools(pages), calls))
    assert all(rank.model.nbytes == 0 for rank in read.ranks)


@pytest.mark.parametrize("kv_dtype", KV_TYPES)
@pytest.mark.parametrize("sizes", [(2, 2), (4, 2), (4, 4)], ids=str)
def test_a_cache_that_is_dealt_out_gives_what_it_gives_on_one_rank(
    directory: Path, kv_dtype: str, sizes: tuple[int, int]
) -> None:
    """In every type of its entries: a window of decode rows far past the selection, at an odd position."""
    context, tokens, start = sizes[1], prompt(5), 139
    one, several = Spread(directory, 1, 1, kv_dtype), Spread(directory, *sizes, kv_dtype)
    tables, pages = page_tables(1, start + 5 + context * PAGE_ENTRIES)
    (whole,) = one.pools(pages, seed=3)
    # Entry e of a rank with share i is that of position e * context + i, over the same page table.
    at = torch.tensor(tables[0])
    parts = []
    for rank in several.ranks:
        share, own = rank.parallel.share, {}
        for name, pool in whole.items():
            by_position = pool[at].flatten(0, 1).view(torch.uint8 if pool.itemsize == 1 else pool.dtype)
            entries = by_position[share.index :: share.count]
            part = torch.zeros_like(pool).view(by_position.dtype)
            used = len(entries) // PAGE_ENTRIES
            part[at[:used]] = entries[: used * PAGE_ENTRIES].view(used, PAGE_ENTRIES, -1)
            own[name] = part.view(pool.dtype)
        parts.append(own)
    call = [(tokens, start, tables[0], False)]
    with recorded_sets(one.ranks[0].model, start + 5) as wanted_sets:
        wanted = one.logits([whole], [call])
    layers = [layer for rank in several.ranks for layer in rank.model.layers]
    with recorded_sets(several.ranks[0].model, start + 5, layers) as sets:
        found = several.logits(parts, [call])
    assert (found - wanted).abs().max() < TOLERANCE
    assert sets == wanted_sets * len(several.ranks)


def test_a_shared_layer_never_goes_without_a_selection(directory: Path) -> None:
    """Every rank runs all layers, so a selection never has to travel; a call that lost it must not go on."""
    model = Spread(directory, 1).ranks[0].model
    call = new_call(batch_of([(prompt(12), 0, [0, 1, 2], True)]), model.rotary, new_pools(model.info.paged, 3))
    assert not model.config.full_indexer[3]
    with pytest.raises(ValueError, match="before any selection was made"):
        model.layers[3](torch.zeros(12, model.config.hidden), call, None)


def test_ranks_hold_the_cut_layers_once_between_them(directory: Path) -> None:
    whole = Spread(directory, 1).ranks[0].model
    for ranks in (2, 3):
        models = [rank.model for rank in Spread(directory, ranks).ranks]
        for layers in zip(whole.layers, *(model.layers for model in models), strict=True):
            one, *parts = layers
            copied = sum(linear.nbytes for linear in replicated(one))
            assert sum(part.nbytes for part in parts) == one.nbytes + (ranks - 1) * copied


def replicated(layer: DecoderLayer) -> list[Linear]:
    """The linear layers that are whole on every rank."""
    attention, mlp = layer.attention, layer.mlp
    indexer = attention.indexer.linears if attention.indexer is not None else ()
    return [attention._down, *indexer, *((mlp._router,) if isinstance(mlp, Mixture) else ())]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_attention_heads": 2, "num_key_value_heads": 2}, "only 2 attention heads"),
        ({"moe_intermediate_size": 2}, "only 2 intermediate columns in an MLP"),
        ({"intermediate_size": 1}, "only 1 intermediate columns in an MLP"),
    ],
)
def test_more_ranks_than_there_is_to_spread_are_refused(tmp_path: Path, changes: dict[str, int], words: str) -> None:
    write_seeded(tmp_path, golden_config() | changes)
    with pytest.raises(ConfigError, match=rf"parallel\.tensor is 3, .*{words}"):
        Spread(tmp_path, 3)
