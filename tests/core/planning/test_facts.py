"""Facts that stand in for headers: what is refused, in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from glmserve.api import CheckpointError, ConfigError
from glmserve.models.glm_moe_dsa.config import read_config
from glmserve.planning.drafters import check_target, dflash2
from glmserve.planning.facts import SHIPPED, Facts, load_facts
from glmserve.planning.headers import PlannedCheckpoint

from .glm53 import facts


def drafter(**changed: Any) -> Facts:
    config = json.loads((SHIPPED / "glm-5.3-dflash2.json").read_text())["config"]
    return Facts(about="a test", config={**config, **changed})


def test_facts_of_ones_own_are_a_file_beside_the_profile(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text((SHIPPED / "glm-5.3-exl3-3.38bpw.json").read_text())
    assert load_facts("mine.json", tmp_path) == facts()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"do not fit: the file: invalid JSON"),
        ('{"about": "x"}', r"do not fit: config: field required\.$"),
        ('{"about": "x", "config": {}, "width": 3}', r"do not fit: width: extra inputs are not permitted\.$"),
        (
            '{"about": "x", "config": {}, "widths": {"linears": 5, "experts": 0, "next_token_experts": 4, "head": 16}}',
            r"do not fit: widths\.experts: input should be greater than 0\.$",
        ),
    ],
)
def test_a_file_that_is_no_facts_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "mine.json").write_text(content)
    with pytest.raises(ConfigError, match=message):
        load_facts("mine.json", tmp_path)


def test_facts_that_do_not_exist_are_refused_with_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"no facts 'glm-5\.3-dflash'; did you mean 'glm-5\.3-dflash2'; a file's path"
    ):
        load_facts("glm-5.3-dflash", tmp_path)
    with pytest.raises(ConfigError, match=r"absent\.json cannot be read: No such file or directory\.$"):
        load_facts("absent.json", tmp_path)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"hidden_size": None}, r"has hidden_size = None; a positive integer is needed\.$"),
        (
            {"num_nextn_predict_layers": "one"},
            r"^num_nextn_predict_layers is 'one'; family 'glm_moe_dsa' knows 0 or 1 such layer\.$",
        ),
        (
            {"indexer_types": ["full"]},
            r"needs 78 values of full or shared in indexer_types, one a layer; it has \['full'\]\.$",
        ),
        (
            {"architectures": ["Glm5NextForConditionalGeneration"]},
            r"^This is GLM-5\.3-Flash \(glm5_next\), another architecture",
        ),
        ({"architectures": "GlmMoeDsaForCausalLM"}, r"has architectures = 'GlmMoe.*'; a list of names is needed\.$"),
        ({"architectures": [["x"]]}, r"has architectures = \[\['x'\]\]; a list of names is needed\.$"),
        ({"rope_parameters": 3}, r"has rope_parameters = 3; keys with values are needed\.$"),
        ({"rope_parameters": {"rope_theta": "x"}}, r"has rope_theta = 'x'; a positive number is needed\.$"),
        ({"rope_parameters": {"rope_theta": -1}}, r"has rope_theta = -1; a positive number is needed\.$"),
        ({"rope_scaling": [1]}, r"has rope_scaling = \[1\]; keys with values are needed\.$"),
        ({"model_type": "glm5_next"}, r"^This is GLM-5\.3-Flash \(glm5_next\), another architecture"),
        ({"quantization_config": 5}, r"has quantization_config = 5; keys with values are needed\.$"),
        ({"quantization_config": {"quant_method": "awq"}}, r"^The facts store weights as 'awq', which the plan knows"),
    ],
)
def test_an_odd_configuration_is_refused_by_the_key(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        PlannedCheckpoint(facts().model_copy(update={"config": {**facts().config, **changed}}), Path("x"))


def test_an_explicit_list_of_indexers_wins_over_the_schedule() -> None:
    kinds = ["full" if i < 2 else "shared" for i in range(78)]
    assert read_config({**facts().config, "indexer_types": kinds}).full_indexers == (0, 1)
    assert read_config({**facts().config, "index_topk_pattern": "F" + "S" * 77}).full_indexers == (0,)


def test_weights_cannot_be_read_from_facts() -> None:
    checkpoint = PlannedCheckpoint(facts(), Path("x"))
    with pytest.raises(CheckpointError, match=r"^x is not here: only its headers are known, and 'lm_head\.weight'"):
        checkpoint.read("lm_head.weight")


def test_a_drafter_is_never_guessed() -> None:
    with pytest.raises(CheckpointError, match=r"target_layer_ids, which has no default\.$"):
        dflash2(drafter(dflash_config={"conv_kernel_size": 2}))
    with pytest.raises(CheckpointError, match=r"are of \['DFlashDraftModel'\], and not of DFlash2DraftModel\.$"):
        dflash2(drafter(architectures=["DFlashDraftModel"]))
    with pytest.raises(CheckpointError, match=r"has head_dim = None; a positive integer is needed\.$"):
        dflash2(drafter(head_dim=None))
    with pytest.raises(CheckpointError, match=r"has dflash_config = 5; keys with values are needed\.$"):
        dflash2(drafter(dflash_config=5))


def test_a_drafter_of_another_model_is_refused() -> None:
    check_target(dflash2(drafter()), 6144, 154_880)
    with pytest.raises(
        CheckpointError, match=r"of hidden size 6144 and 100 tokens, and the model has 6144 and 154880: "
    ):
        check_target(dflash2(drafter(vocab_size=100)), 6144, 154_880)


@pytest.mark.parametrize(
    ("layers", "config", "parameters"),
    [
        # Other published drafters of this architecture.
        (5, {"hidden_size": 4096, "num_attention_heads": 32}, 1_171_080_448),
        (
            5,
            {"hidden_size": 5120, "intermediate_size": 17408, "num_attention_heads": 32, "vocab_size": 248320},
            1_924_404_480,
        ),
    ],
)
def test_drafters_have_their_published_parameters(layers: int, config: dict[str, Any], parameters: int) -> None:
    own = {**drafter().config["dflash_config"], "target_layer_ids": [0, 1, 2, 3, 4]}
    made = drafter(num_hidden_layers=layers, dflash_config=own, **config)
    assert dflash2(made).parameters == parameters
