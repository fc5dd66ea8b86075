"""The next-token layer against golden outputs, which were made from the formulas: transformers has no such layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from glmserve.api import ForwardBatch, NextTokenOutput, Segment

from .glm import load, new_pools, recorded_sets
from .paged import PAGE_TOKENS, output
from .seeded import Tensors, golden_config, golden_outputs, write_seeded

ROWS = 23
TOLERANCE = 1e-4
Cuts = list[tuple[int, bool]]
CUTS: dict[str, Cuts] = {
    "whole": [(ROWS, True)],
    "chunked": [(10, True), (13, True)],
    "decoded alone": [(1, False)] * ROWS,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    directory = tmp_path_factory.mktemp("golden")
    write_seeded(directory, golden_config())
    return load(directory)


@pytest.fixture(scope="module")
def golden() -> Tensors:
    return golden_outputs()


def outputs(
    model: Any, layer: Any, ids: list[int], hidden: torch.Tensor, cuts: list[tuple[int, bool]]
) -> NextTokenOutput:
    """hidden: [23, hidden], of the target."""
    pools = {p.name: torch.zeros(1, PAGE_TOKENS, *p.per_token) for p in layer.paged}
    found, start = [], 0
    for rows, chunk in cuts:
        places = torch.arange(start, start + rows)
        batch = ForwardBatch(
            token_ids=torch.tensor(ids)[places + 1],
            positions=places,
            slots=places,
            segments=[Segment(0, rows, start, torch.tensor([0]), chunk)],
            logit_rows=torch.arange(rows),
            page_entries=PAGE_TOKENS,
        )
        with torch.inference_mode():
            found.append(layer.forward(batch, hidden[places], pools))
        start += rows
    return NextTokenOutput(torch.cat([one.hidden for one in found]), torch.cat([one.logits for one in found]))


def hidden_of(model: Any, ids: list[int]) -> dict[int, torch.Tensor]:
    """By layer, and after the final norm under the number of layers."""
    layers = model.info.num_layers
    made = output(model, new_pools(model, 1), (ids, 0, [0], True), taps=(layers - 1, layers))
    return dict(made.taps)


@pytest.mark.parametrize("cuts", CUTS)
def test_drafts_hidden_states_and_selection_are_the_golden_ones(model: Any, golden: Tensors, cuts: str) -> None:
    """Pitfalls 11 and 13: the layer takes the normed hidden state, and selects by an indexer of its own."""
    ids, layer = golden["prompt_ids"].tolist(), model.load_next_token_layer()
    hidden = hidden_of(model, ids)[model.info.num_layers]
    with recorded_sets(model, ROWS, [layer._layer[0]]) as sets:
        found = outputs(model, layer, ids, hidden, CUTS[cuts])
    assert (found.logits - golden["mtp_logits"]).abs().max() < TOLERANCE
    assert (found.hidden - golden["mtp_hidden_normed"]).abs().max() < TOLERANCE
    topk = model.config.index_topk
    assert sets[0][topk:] == [set(row) for row in golden["mtp_topk"].tolist()[topk:]]
    assert sets[0][topk:] != [set(row) for row in golden["topk.6"].tolist()[topk:ROWS]]


def test_a_hidden_state_carried_raw_is_caught(model: Any, golden: Tensors) -> None:
    """Pitfall 11."""
    ids, layer = golden["prompt_ids"].tolist(), model.load_next_token_layer()
    found = outputs(model, layer, ids, hidden_of(model, ids)[model.info.num_layers - 1], CUTS["whole"])
    assert (found.logits - golden["mtp_logits"]).abs().max() > 10 * TOLERANCE


def test_halves_that_are_swapped_are_caught(model: Any, golden: Tensors, monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedding comes first."""
    ids, layer = golden["prompt_ids"].tolist(), model.load_next_token_layer()
    hidden = hidden_of(model, ids)[model.info.num_layers]
    straight: Any = layer._input[0]
    monkeypatch.setattr(layer, "_input", [lambda x: straight(torch.cat(x.chunk(2, -1)[::-1], -1))])
    found = outputs(model, layer, ids, hidden, CUTS["whole"])
    assert (found.logits - golden["mtp_logits"]).abs().max() > 10 * TOLERANCE


def test_the_targets_selection_is_caught(model: Any, golden: Tensors, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pitfall 13: rows attending to what the last layer of the target selected."""
    ids, layer = golden["prompt_ids"].tolist(), model.load_next_token_layer()
    hidden, topk = hidden_of(model, ids)[model.info.num_layers], model.config.index_topk
    theirs = golden["topk.6"][topk:ROWS].long().sort(-1).values
    monkeypatch.setattr(layer._layer[0].attention.indexer, "select", lambda hidden, latent, call: [theirs])
    found = outputs(model, layer, ids, hidden, CUTS["whole"])
    assert (found.logits - golden["mtp_logits"]).abs().max() > 10 * TOLERANCE
