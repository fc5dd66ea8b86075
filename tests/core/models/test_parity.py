"""Logits are those of Hugging Face transformers on the same weights, however the positions are cut into calls."""

from pathlib import Path
from typing import Any

import pytest
import torch
from glmserve.models.gguf import Gguf
from glmserve.store.checkpoint import open_checkpoint
from glmserve.store.dequantize import dequantize
from transformers import LlamaConfig, LlamaForCausalLM

from .paged import VOCABULARY, forward, load, new_pools, write_random

TOLERANCE = 1e-4
TOKENS = 150
WHOLE = [(TOKENS, True)]
CHUNKED = [(64, True), (64, True), (22, True)]
CACHED = [(64, True), *[(1, False)] * 60, *[(13, False)] * 2]
CUTS = {"whole": WHOLE, "chunked": CHUNKED, "cached": CACHED}


def rope(**parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": 10000.0, **parameters}}


MODELS: dict[str, dict[str, Any]] = {
    "grouped queries": {},
    "one key-value head": {"num_key_value_heads": 1},
    "a key-value head per query": {"num_key_value_heads": 6},
    "tied head": {"tie_word_embeddings": True},
    "own head_dim": {"head_dim": 16},
    "odd sizes": {"hidden_size": 54, "head_dim": 10, "intermediate_size": 77},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "linear": rope(rope_type="linear", factor=4.0),
    "llama3": rope(
        rope_type="llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=64,
    ),
    "yarn": rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=64),
    "mistral": {"mistral": True, "sliding_window": None},
}


@pytest.fixture(scope="module", params=MODELS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    directory = tmp_path_factory.mktemp("model")
    reference = write_random(directory, **MODELS[request.param])
    return reference, load(directory)


def logits_in_cuts(model: Any, ids: list[int], cuts: list[tuple[int, bool]]) -> torch.Tensor:
    """Over scattered pages, so that none of the calls can lean on their order."""
    pools, pages = new_pools(model, 6), [4, 0, 2, 1, 5]
    out, start = [], 0
    for count, chunk in cuts:
        out.append(forward(model, pools, (ids[start : start + count], start, pages, chunk)))
        start += count
    assert start == len(ids)
    return torch.cat(out)


@pytest.mark.parametrize("cuts", CUTS)
def test_a_tiny_model_computes_what_transformers_computes(pair: tuple[Any, Any], cuts: str) -> None:
    reference, model = pair
    ids = torch.randint(0, VOCABULARY, (TOKENS,), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected = reference(ids[None]).logits[0]
    assert expected.std() > 1
    assert (logits_in_cuts(model, ids.tolist(), CUTS[cuts]) - expected).abs().max() < TOLERANCE


def test_smollm2_from_gguf_computes_what_transformers_computes_up_to_rounding(smollm2: Path) -> None:
    """Logits reach 35 here, and transformers in float32 is itself up to 1.7e-4 from transformers in float64.

    So 1e-4 holds for all but a few logits, and the worst is measured by the size of the logits.
    """
    checkpoint = open_checkpoint(smollm2)
    reference = LlamaForCausalLM(LlamaConfig(**checkpoint.config)).eval().float()
    state = {}
    for name, info in checkpoint.tensors.items():
        stored = checkpoint.read(name)
        state[name] = dequantize(stored, info.dtype) if stored.dtype == torch.uint8 else stored.float()
    missing, unexpected = reference.load_state_dict(state, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    reference.tie_weights()
    ids = torch.randint(0, 49152, (96,), generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        expected = reference(ids[None]).logits[0]
    model = load(smollm2, Gguf)
    for cuts in ([(96, True)], [(64, True), (20, True), *[(1, False)] * 5, (7, False)]):
        difference = (logits_in_cuts(model, ids.tolist(), cuts) - expected).abs()
        assert (difference < TOLERANCE).float().mean() > 0.999
        assert difference.max() < 1e-5 * expected.abs().max()
