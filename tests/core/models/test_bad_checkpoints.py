"""A checkpoint that does not fit its configuration is refused before it is loaded, by the name of the tensor."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from glmserve.api import CheckpointError
from safetensors.torch import load_file, save_file

from .paged import forward, load, new_pools, write_random

Tensors = dict[str, torch.Tensor]
Q, K = "model.layers.1.self_attn.q_proj", "model.layers.1.self_attn.k_proj"


@pytest.fixture
def change(tmp_path: Path) -> Callable[..., Path]:
    def change(edit: Callable[[Tensors], Any] = lambda t: None, settings: Any = None, **model: Any) -> Path:
        write_random(tmp_path, **model)
        tensors = load_file(tmp_path / "model.safetensors")
        edit(tensors)
        save_file(tensors, tmp_path / "model.safetensors")
        config = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps({**config, **(settings or {})}))
        return tmp_path

    return change


def put(name: str, *shape: int) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.__setitem__(name, torch.ones(*shape))


def drop(name: str) -> Callable[[Tensors], Any]:
    return lambda tensors: tensors.pop(name)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (drop("model.norm.weight"), "lacks tensors: model.norm.weight"),
        (drop("lm_head.weight"), "lacks tensors: lm_head.weight"),
        (drop(Q + ".weight"), f"lacks tensors: {Q}.weight"),
        (put("model.layers.3.mlp.up_proj.weight", 80, 48), "unexpected tensors: model.layers.3.mlp.up_proj.weight"),
        (put("model.norm.bias", 48), "unexpected tensors: model.norm.bias"),
        (put("model.embed_tokens.bias", 48), "unexpected tensors: model.embed_tokens.bias"),
        (put("model.layers.0.input_layernorm.bias", 48), "unexpected tensors: model.layers.0.input_layernorm.bias"),
        (put("model.norm.weight", 47), "'model.norm.weight' has shape [47], but the configuration needs [48]"),
        (put("model.layers.2.input_layernorm.weight", 1), "'model.layers.2.input_layernorm.weight' has shape [1]"),
        (put("model.embed_tokens.weight", 97, 47), "'model.embed_tokens.weight' has shape [97, 47]"),
        (put("model.embed_tokens.weight", 96, 48), "'model.embed_tokens.weight' has shape [96, 48]"),
        (put("lm_head.weight", 48, 97), "'lm_head.weight' has shape [48, 97]"),
        (put(K + ".weight", 48, 48), f"'{K}.weight' has shape [48, 48], but the configuration needs [16, 48]"),
        (put("rope_freqs.weight", 5), "'rope_freqs.weight' has shape [5], but the configuration needs [4]"),
        (put(Q + ".bias", 48), f"lacks tensors: {K}.bias, {K.replace('k_proj', 'v_proj')}.bias"),
        (put("model.layers.0.mlp.down_proj.bias", 47), "'model.layers.0.mlp.down_proj.bias' has shape [47]"),
    ],
)
def test_the_tensor_that_does_not_fit_is_named(change: Callable[..., Path], edit: Any, words: str) -> None:
    with pytest.raises(CheckpointError) as refusal:
        load(change(edit))
    assert words in str(refusal.value)
    assert str(refusal.value).endswith(".")


@pytest.mark.parametrize(("setting", "part"), [("attention_bias", "self_attn.o_proj"), ("mlp_bias", "mlp.gate_proj")])
def test_a_bias_that_the_configuration_promises_is_needed(change: Callable[..., Path], setting: str, part: str) -> None:
    with pytest.raises(CheckpointError, match=rf"lacks tensors: .*{part}\.bias"):
        load(change(settings={setting: True}))


def test_many_missing_tensors_are_counted(change: Callable[..., Path]) -> None:
    with pytest.raises(CheckpointError, match="and 6 more"):
        load(change(settings={"num_hidden_layers": 4}))


def test_a_tied_head_stored_twice_is_read_once(change: Callable[..., Path]) -> None:
    path = change(put("lm_head.weight", 97, 48), tie_word_embeddings=True)
    expected = change(tie_word_embeddings=True)
    rows = ([1, 2, 3], 0, [0], True)
    models = load(path), load(expected)
    assert torch.equal(*(forward(model, new_pools(model, 1), rows) for model in models))


def test_a_tied_head_has_no_bias(change: Callable[..., Path]) -> None:
    with pytest.raises(CheckpointError, match=r"unexpected tensors: lm_head\.bias"):
        load(change(put("lm_head.bias", 97), tie_word_embeddings=True))
