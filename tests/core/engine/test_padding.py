"""Pitfall 30: rows that only pad a model's vocabulary are never chosen, drafted, biased or scored."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from glmserve.deployment import build
from glmserve.engine.drafters import NgramDrafter, NoDrafter
from glmserve.engine.engine import Engine
from glmserve.plugins import load_plugins
from glmserve.profiles import load_profile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models

from . import tiny

TOKENS = 60
"""Of tiny's 64 rows; the other four shout each other down."""


def write_padded(directory: Path) -> Path:
    """Of each pair of padding rows one is large where the other is small, so one is always larger than any token."""
    tiny.write_checkpoint(directory)
    tensors = load_file(directory / "model.safetensors")
    head = tensors["lm_head.weight"]
    for i, row in enumerate(range(TOKENS, tiny.VOCAB, 2)):
        head[row], head[row + 1] = 30 * head[i + 3], -30 * head[i + 3]
    save_file(tensors, directory / "model.safetensors")
    return directory


def write_cut(padded: Path, directory: Path) -> Path:
    """The same model without its padding."""
    tensors = load_file(padded / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors[name] = tensors[name][:TOKENS].clone()
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(tiny.CONFIG | {"vocab_size": TOKENS}))
    return directory


@pytest.fixture(scope="module")
def padded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_padded(tmp_path_factory.mktemp("padded"))


@pytest.fixture(scope="module")
def masked(padded: Path) -> Iterator[Engine]:
    engine = tiny.make_engine(tiny.load_model(padded), NgramDrafter, num_tokens=TOKENS)
    yield engine
    engine.stop()


@pytest.fixture(scope="module")
def cut(padded: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    engine = tiny.make_engine(tiny.load_model(write_cut(padded, tmp_path_factory.mktemp("cut"))), NoDrafter)
    yield engine
    engine.stop()


requests = st.builds(
    tiny.request,
    st.lists(st.integers(3, TOKENS - 1), min_size=1, max_size=20),
    max_tokens=st.integers(1, 16),
    temperature=st.sampled_from([0.0, 1.0, 2.0]),
    top_p=st.sampled_from([1.0, 0.9]),
    repetition_penalty=st.sampled_from([1.0, 1.2]),
    seed=st.integers(0, 2**64 - 1),
    min_tokens=st.sampled_from([0, 3]),
)


def test_without_the_mask_padding_would_be_chosen_all_the_time(padded: Path) -> None:
    engine = tiny.make_engine(tiny.load_model(padded))
    tokens = tiny.generate(engine, [tiny.request([5, 6], 8)])[0]
    engine.stop()
    assert all(token >= TOKENS for token in tokens)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(requests, min_size=1, max_size=6))
def test_a_padded_model_says_what_it_would_say_without_padding(masked: Engine, cut: Engine, batch: list[Any]) -> None:
    """Drafted and in a batch; the other one serially and alone."""
    tokens = tiny.generate(masked, batch)
    assert all(token < TOKENS for one in tokens for token in one)
    assert tokens == [tiny.generate(cut, [one])[0] for one in batch]


def test_probabilities_are_those_of_tokens(masked: Engine) -> None:
    one = tiny.request([5, 6, 7], 4, logprobs=tiny.VOCAB)
    outputs = asyncio.run(tiny.collect(masked, one))
    scores = [score for output in outputs for score in output.logprobs]
    assert len(scores) == 4
    for score in scores:
        assert [token for token, _ in score.top if token >= TOKENS] == []
        assert torch.tensor([value for _, value in score.top]).exp().sum().item() == pytest.approx(1)


def test_the_mask_is_set_from_the_tokenizer(padded: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({f"t{i}": i for i in range(TOKENS)}, unk_token="t0"))
    (padded / "tokenizer.json").write_text(tokenizer.to_str())
    profile = tmp_path / "padded.toml"
    profile.write_text(f'[model]\nsource = "path:{padded}"\nserved_name = "m"\n[engine]\nmax_context = 256\n')
    engine = build(load_profile(str(profile), environ={}), load_plugins(environ={})).engine
    assert (engine.num_tokens, engine.info.vocab_size) == (TOKENS, tiny.VOCAB)
