"""Logits and selections are those of transformers, which computes the expanded form, however the rows are cut."""

from typing import Any

import pytest

from .glm import clear_prompt, expected, expected_sets, load, logits_in_cuts, recorded_sets, write_random

TOLERANCE = 1e-4
TOKENS = 150
CUTS = {
    "whole": [(TOKENS, True)],
    "chunked": [(64, True), (64, True), (22, True)],
    "cached": [(64, True), *[(1, False)] * 60, *[(13, False)] * 2],
    "decoded alone": [(1, False)] * TOKENS,
}
MODELS: dict[str, dict[str, Any]] = {
    "shared indexers": {},
    "an indexer in every layer": {"num_hidden_layers": 3, "indexer_types": ["full"] * 3},
    "one dense layer": {"num_hidden_layers": 4, "first_k_dense_replace": 1},
    "wider, more experts": {"hidden_size": 96, "n_routed_experts": 16, "num_experts_per_tok": 5},
    "two shared experts": {"n_shared_experts": 2, "num_hidden_layers": 4},
    "odd sizes": {"kv_lora_rank": 20, "q_lora_rank": 37, "v_head_dim": 9, "qk_nope_head_dim": 11, "index_head_dim": 18},
    "most of the context selected": {"index_topk": 120},
    "all of the context selected": {"index_topk": 200},
    "one token selected": {"index_topk": 1},
}


@pytest.fixture(scope="module", params=MODELS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, list[int]]:
    """(transformers' model, ours, a prompt)"""
    directory = tmp_path_factory.mktemp("glm")
    reference = write_random(directory, **MODELS[request.param])
    return reference, load(directory), clear_prompt(reference, TOKENS)


@pytest.mark.parametrize(
    "cuts", [pytest.param(name, marks=pytest.mark.slow if name == "decoded alone" else ()) for name in CUTS]
)
def test_a_random_model_computes_what_transformers_computes(case: tuple[Any, Any, list[int]], cuts: str) -> None:
    reference, model, ids = case
    wanted = expected(reference, ids)
    assert wanted.std() > 0.5
    with recorded_sets(model, TOKENS) as sets:
        found = logits_in_cuts(model, ids, CUTS[cuts])
    assert sets == expected_sets(reference, ids)
    assert (found - wanted).abs().max() < TOLERANCE
