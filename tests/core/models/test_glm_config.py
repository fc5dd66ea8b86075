"""What the configuration of a glm_moe_dsa checkpoint may say; what is not computed is refused by the key."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from glmserve.api import CheckpointError
from glmserve.deployment import plan
from glmserve.models.glm_moe_dsa.config import read_config
from glmserve.plugins import load_plugins
from glmserve.profiles import load_profile
from safetensors.torch import save_file

from .seeded import golden_config


def test_flash_is_refused_by_name() -> None:
    with pytest.raises(CheckpointError, match=r"GLM-5\.3-Flash \(glm5_next\), another architecture"):
        read_config(golden_config() | {"model_type": "glm5_next"})


def test_a_checkpoint_of_flash_is_refused_by_name_before_it_is_loaded(tmp_path: Path) -> None:
    """Its configuration is nested, and shares hardly a key with that of GLM-5.3."""
    flash = {
        "architectures": ["Glm5NextForConditionalGeneration"],
        "model_type": "glm5_next",
        "text_config": {"num_hidden_layers": 45, "hidden_size": 4096},
    }
    (tmp_path / "config.json").write_text(json.dumps(flash))
    save_file({"model.embed_tokens.weight": torch.zeros(2, 2)}, tmp_path / "model.safetensors")
    profile = load_profile("local", [f"model.source=path:{tmp_path}", "model.sha256="], {})
    with pytest.raises(CheckpointError, match=r"GLM-5\.3-Flash \(glm5_next\), another architecture"):
        plan(profile, load_plugins(environ={}))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("n_group", 8),
        ("topk_group", 4),
        ("scoring_func", "softmax"),
        ("topk_method", "greedy"),
        ("norm_topk_prob", False),
        ("moe_router_dtype", "bfloat16"),
        ("rope_interleave", False),
        ("indexer_rope_interleave", False),
        ("attention_bias", True),
        ("tie_word_embeddings", True),
        ("hidden_act", "gelu"),
        ("num_nextn_predict_layers", 2),
        ("num_experts_per_tok", 9),
        ("qk_rope_head_dim", 34),
        ("index_topk", 0),
        ("indexer_types", ["full"] * 6),
        ("indexer_types", ["full"] * 6 + ["half"]),
        ("rope_parameters", {"rope_theta": 8e6, "rope_type": "yarn", "factor": 4}),
    ],
)
def test_what_the_family_does_not_compute_is_refused_by_the_key(key: str, value: Any) -> None:
    with pytest.raises(CheckpointError) as refusal:
        read_config(golden_config() | {key: value})
    assert key in str(refusal.value) or "rope_type" in str(refusal.value)
    assert str(refusal.value).endswith(".")


def test_indexers_stand_where_the_list_says_else_the_pattern_else_the_schedule() -> None:
    """Pitfall 2: GLM-5.2 and 5.3 have 21 of them in 78 layers, GLM-5 one in every layer."""
    plain = without(golden_config(), "indexer_types", "mlp_layer_types") | {"num_hidden_layers": 78}
    published = [0, 1, 2, *range(6, 78, 4)]
    every = without(plain, "index_topk_freq", "index_skip_topk_offset")
    pattern = {"index_topk_pattern": "F" + "S" * 77}
    assert where(plain) == published
    assert len(published) == 21
    assert where(every) == list(range(78))
    assert where(plain | pattern) == [0]
    assert where(plain | pattern | {"indexer_types": ["full", "full", *["shared"] * 76]}) == [0, 1]
    with pytest.raises(CheckpointError, match="Layer 0 has no indexer"):
        read_config(plain | {"index_topk_pattern": "S" * 78})


def where(config: Mapping[str, Any]) -> list[int]:
    return [i for i, full in enumerate(read_config(config).full_indexer) if full]


def without(config: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in names}
