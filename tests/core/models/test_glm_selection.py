"""Across the selection of a real index_topk, 2,048 tokens: dense before it, sparse past it, on every kind of edge.

Pitfalls 1, 9 and 17: engines whose indexer was wrong, or left out, or whose paged kernels misread an edge, were right
up to 2,048 tokens and wrong from there on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from glmserve.models.glm_moe_dsa.indexer import SPAN_KEYS
from glmserve.models.glm_moe_dsa.model import GlmMoeDsaModel

from .formulas import Outcome, compute
from .glm import load, logits_in_cuts, new_pools, prompt, recorded_sets
from .paged import PAGE_TOKENS, forward
from .seeded import golden_config, write_seeded

TOPK = 2048
PAGE_EDGE = 65 * PAGE_TOKENS
TOLERANCE = 1e-4
CLOSE = 2e-6
CONFIG: dict[str, Any] = golden_config() | {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "moe_intermediate_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "n_routed_experts": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "index_topk": TOPK,
    "index_n_heads": 2,
    "index_head_dim": 16,
    "indexer_types": ["full", "shared", "full", "shared"],
    "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
    "max_position_embeddings": 16384,
    "num_nextn_predict_layers": 0,
}


@dataclass
class Case:
    model: GlmMoeDsaModel
    ids: list[int]
    sparse: Outcome
    dense: Outcome


def new_case(directory: Path, tokens: int) -> Case:
    tensors, ids = write_seeded(directory, CONFIG), prompt(tokens, vocabulary=64)
    return Case(load(directory), ids, compute(CONFIG, tensors, ids), compute(CONFIG, tensors, ids, dense=True))


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return new_case(tmp_path_factory.mktemp("sweep"), SPAN_KEYS + 8)


def check(case: Case, found: torch.Tensor, felt: float = 0.0) -> None:
    """found: the logits of rows 0, 1, .... Rows with a choice closer than rounding are left out.

    Where such a choice falls otherwise, later rows attend to a token that has changed; `felt` is the share of rows that
    may feel it.
    """
    rows = slice(0, len(found))
    clear = case.sparse.gaps[rows] > CLOSE
    assert clear.double().mean() > 0.95
    wanted, dense = case.sparse.logits[rows][clear], case.dense.logits[rows][clear]
    errors = (found[clear] - wanted).abs().amax(1)
    assert (errors >= TOLERANCE).double().mean() <= felt
    assert errors.max() < 100 * TOLERANCE
    past = torch.arange(rows.start, rows.stop)[clear] >= TOPK
    apart = (found[clear] - dense).abs().amax(1)
    assert (apart[~past] < TOLERANCE).all()
    assert (apart[past] > 10 * TOLERANCE).all()


@pytest.mark.parametrize("tokens", [TOPK - 1, TOPK, TOPK + 1, PAGE_EDGE - 1, PAGE_EDGE, PAGE_EDGE + 1])
def test_a_prompt_is_dense_up_to_the_selection_and_sparse_past_it(case: Case, tokens: int) -> None:
    check(case, logits_in_cuts(case.model, case.ids[:tokens], [(tokens, True)]))


def test_chunks_and_decoded_rows_agree_on_every_edge(case: Case) -> None:
    """Rows one by one, in windows and in chunks around the selection, page edges and a span of scored keys."""
    sweep(case, (1024, TOPK, PAGE_EDGE, 3072, SPAN_KEYS))


@pytest.mark.slow
def test_the_same_up_to_10_thousand_tokens(tmp_path: Path) -> None:
    case = new_case(tmp_path, 10_250)
    sweep(case, (1024, TOPK, PAGE_EDGE, SPAN_KEYS, 6144, 2 * SPAN_KEYS, 10_240), felt=1e-3)


def sweep(case: Case, edges: Sequence[int], felt: float = 0.0) -> None:
    """Up to 3 tokens before an edge in chunks, then 3 rows alone and a window of 4; selections are compared there."""
    count = -(-len(case.ids) // PAGE_TOKENS)
    pages = torch.randperm(count + 3, generator=torch.Generator().manual_seed(5))[:count].tolist()
    pools, at = new_pools(case.model, count + 3), 0
    found = []

    def run(rows: int, chunk: bool) -> None:
        nonlocal at
        found.append(forward(case.model, pools, (case.ids[at : at + rows], at, pages, chunk)))
        at += rows

    for edge in edges:
        while at < edge - 3:
            run(min(512, edge - 3 - at), True)
        with recorded_sets(case.model, edge + 4) as sets:
            for rows in (1, 1, 1, 4):
                run(rows, False)
        rows = [row for row in range(edge - 3, edge + 4) if case.sparse.gaps[row] > CLOSE]
        assert rows
        assert [[layer[row] for row in rows] for layer in sets] == case.sparse.sets(rows)
    check(case, torch.cat(found), felt)


def test_past_the_selection_a_layer_attends_to_2048_tokens_of_all_before(case: Case) -> None:
    """What the sweep compares with is itself sparse, and not by a window: old tokens are selected and new ones not."""
    for keep in case.sparse.kept:
        counts = keep.sum(1)
        assert torch.equal(counts, torch.arange(1, len(keep) + 1).clamp(max=TOPK))
        last = keep[-1].nonzero().flatten()
        assert last[0] < 16
        assert not keep[-1, -TOPK:].all()
