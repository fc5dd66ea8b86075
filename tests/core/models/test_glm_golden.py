"""Golden outputs of transformers, made elsewhere, and the same from formulas of our own: ours are equal to both."""

from pathlib import Path
from typing import Any

import pytest
import torch

from .formulas import Outcome, compute
from .glm import load, logits_in_cuts, new_pools, recorded_sets
from .paged import output
from .seeded import Tensors, golden_config, golden_outputs, sums, write_seeded

TOLERANCE = 1e-4
CUTS = {
    "whole": [(24, True)],
    "chunked": [(10, True), (14, True)],
    "cached": [(10, True), *[(1, False)] * 9, (5, False)],
    "decoded alone": [(1, False)] * 24,
}


@pytest.fixture(scope="module")
def golden() -> Tensors:
    return golden_outputs()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tensors]:
    """(checkpoint, its tensors)"""
    directory = tmp_path_factory.mktemp("golden")
    return directory, write_seeded(directory, golden_config())


@pytest.fixture(scope="module")
def model(written: tuple[Path, Tensors]) -> Any:
    return load(written[0])


@pytest.fixture(scope="module")
def formulas(written: tuple[Path, Tensors], golden: Tensors) -> Outcome:
    return compute(golden_config(), written[1], golden["prompt_ids"].tolist())


def golden_sets(golden: Tensors) -> list[list[set[int]]]:
    """Rows that see no more tokens than are selected attend to all; transformers fills theirs up with masked ones."""
    found = []
    for i in range(golden_config()["num_hidden_layers"]):
        rows = golden[f"topk.{i}"].tolist()
        found.append([set(row) if t >= len(row) else set(range(t + 1)) for t, row in enumerate(rows)])
    return found


def test_the_weights_are_those_of_the_golden_outputs(written: tuple[Path, Tensors], golden: Tensors) -> None:
    """When this fails, torch draws other numbers than it did, and the other tests here say nothing."""
    assert torch.allclose(sums(written[1]), golden["weights"], rtol=0, atol=1e-3)


@pytest.mark.parametrize("cuts", CUTS)
def test_logits_and_selections_are_the_golden_ones(model: Any, golden: Tensors, cuts: str) -> None:
    assert golden["logits"].std() > 0.5
    with recorded_sets(model, 24) as sets:
        found = logits_in_cuts(model, golden["prompt_ids"].tolist(), CUTS[cuts])
    assert sets == golden_sets(golden)
    assert (found - golden["logits"]).abs().max() < TOLERANCE


def test_every_layer_returns_the_golden_hidden_states(model: Any, golden: Tensors) -> None:
    layers = model.info.num_layers
    ids = golden["prompt_ids"].tolist()
    taps = output(model, new_pools(model, 1), (ids, 0, [0], True), taps=tuple(range(layers + 1))).taps
    for i in range(layers - 1):
        assert (taps[i] - golden[f"hidden.{i + 1}"]).abs().max() < TOLERANCE, f"layer {i}"
    assert (taps[layers] - golden[f"hidden.{layers}"]).abs().max() < TOLERANCE  # after the final norm


def test_decoding_goes_on_as_the_golden_run_did(model: Any, golden: Tensors) -> None:
    """Fed with its own choices, over the pages of the prompt."""
    prompt, wanted = golden["prompt_ids"].tolist(), golden["generated_ids"].tolist()
    pools = new_pools(model, 2)
    logits = output(model, pools, (prompt, 0, [1, 0], True)).logits[-1:]
    found, chosen = [logits], [int(logits.argmax())]
    for i in range(len(wanted) - 1):
        logits = output(model, pools, ([chosen[-1]], len(prompt) + i, [1, 0], False)).logits
        found.append(logits)
        chosen.append(int(logits.argmax()))
    assert chosen == wanted
    assert (torch.cat(found) - golden["decode_logits"]).abs().max() < TOLERANCE


def test_the_formulas_in_float64_give_the_golden_outputs(formulas: Outcome, golden: Tensors) -> None:
    """Two oracles that share no code agree, so what ours is held to below and elsewhere is right."""
    assert formulas.sets == golden_sets(golden)
    assert (formulas.logits - golden["logits"]).abs().max() < 2e-5


@pytest.mark.parametrize("cuts", CUTS)
def test_absorbed_attention_is_the_expanded_one(model: Any, formulas: Outcome, golden: Tensors, cuts: str) -> None:
    """Pitfall 34: one form over one cache of latents, equal to keys and values made for every head."""
    found = logits_in_cuts(model, golden["prompt_ids"].tolist(), CUTS[cuts])
    assert (found - formulas.logits).abs().max() < 2e-5


def test_the_cache_is_as_wide_as_a_latent_and_a_rotated_key(model: Any) -> None:
    """Pitfall 34: nothing expanded is stored, and indexer keys on full layers only (pitfall 10)."""
    widths = {paged.name: paged.per_token for paged in model.info.paged}
    assert {widths[f"layers.{i}.latent"] for i in range(7)} == {(32 + 16,)}
    assert [name for name in widths if name.endswith("index")] == [f"layers.{i}.index" for i in (0, 1, 2, 6)]
    assert len(widths) == 7 + 4
