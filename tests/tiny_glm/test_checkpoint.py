"""The shipped model: its files, that transformers computes the same with it, and what it answers."""

from __future__ import annotations

import importlib.util
import json
from hashlib import sha256
from itertools import islice
from pathlib import Path

import pytest
import torch
from glmserve.api.components import Manifest, parse_manifest
from glmserve.licensing.installed.manifests import manifests
from glmserve.profiles import load_profile
from glmserve.store.checkpoint import open_checkpoint
from glmserve.store.pull import locate
from glmserve.store.sources import parse_source
from glmserve_model_tiny_glm import CHECKPOINT
from recipe import checkpoint, manifest, model
from recipe.batches import Encoder, batches
from recipe.corpus import Example
from recipe.evaluate import drawn, greedy, tokens_per_step
from recipe.model import CONFIG, Model
from recipe.mtp import Mtp
from recipe.tokenizer import STOP_IDS

PACKAGE = CHECKPOINT.parent
MANIFESTS = {path.stem: parse_manifest(path.read_bytes(), path.name) for path in PACKAGE.glob("components/*.toml")}
HELD_OUT = Path(__file__).parents[2] / "models" / "tiny_glm" / "held_out.json"
LOADED = checkpoint.load()


def listed() -> dict[str, Manifest]:
    return {entry.path: one for one in MANIFESTS.values() for entry in one.files}


def test_all_of_it_is_small() -> None:
    assert sum(path.stat().st_size for path in PACKAGE.rglob("*") if path.is_file()) < 12e6


def test_the_manifests_own_every_file_of_the_checkpoint_with_its_digest() -> None:
    assert set(listed()) == {f"checkpoint/{path.name}" for path in CHECKPOINT.iterdir()}
    for one in MANIFESTS.values():
        assert one.license.expression == "Apache-2.0"
        assert one.delivery == "bundled"
        for entry in one.files:
            data = (PACKAGE / entry.path).read_bytes()
            assert (entry.sha256, entry.size) == (sha256(data).hexdigest(), len(data))


def test_the_manifests_are_as_the_recipe_writes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in PACKAGE.glob("components/*.toml"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(manifest, "COMPONENTS", tmp_path)
    manifest.write()
    assert all((tmp_path / path.name).read_bytes() == path.read_bytes() for path in PACKAGE.glob("components/*.toml"))


def test_the_profile_finds_the_checkpoint_in_the_package_and_names_its_parts() -> None:
    profile = load_profile("tiny-glm", environ={})
    assert locate(parse_source(profile.model.source)) == CHECKPOINT
    assert set(profile.components.model) == {one.id for one in MANIFESTS.values() if one.kind != "code"}


@pytest.mark.skipif(not any(one.manifest.id == "tiny-glm" for one in manifests()), reason="not installed with pip")
def test_the_audit_finds_the_manifests_of_the_installed_package() -> None:
    assert {one.manifest.id for one in manifests()} >= set(MANIFESTS)


def test_the_tensors_have_the_names_of_the_family() -> None:
    opened = open_checkpoint(CHECKPOINT)
    names = set(opened.tensors)
    assert names == set(checkpoint.published(*LOADED))
    last = CONFIG.num_hidden_layers
    assert f"model.layers.{last}.eh_proj.weight" in names
    assert f"model.layers.{last}.shared_head.norm.weight" in names
    indexers = {name.split(".")[2] for name in names if name.endswith("indexer.wk.weight")}
    assert indexers == {str(n) for n, kind in enumerate([*CONFIG.indexer_types, "full"]) if kind == "full"}
    kinds = {opened.tensors[name].dtype for name in names if name.endswith("e_score_correction_bias")}
    assert kinds == {"F32"}


def test_the_configuration_is_as_the_recipe_writes_it() -> None:
    assert json.loads((CHECKPOINT / "config.json").read_text("utf-8")) == checkpoint.config_json(CONFIG, STOP_IDS)


def test_writing_the_loaded_model_gives_the_same_bytes(tmp_path: Path) -> None:
    checkpoint.write(*LOADED, tmp_path)
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (CHECKPOINT / path.name).read_bytes()


def any_of_equals(scores: torch.Tensor, count: int) -> torch.Tensor:
    """`select`, but of equal scores it takes whichever topk picks, as transformers does."""
    mask = model.causal(scores.shape[-1])
    best = scores.masked_fill(~mask, -torch.inf).topk(count, -1).indices
    return torch.zeros_like(mask.expand_as(scores)).scatter(-1, best, True) & mask


def test_of_equal_scores_the_earlier_key_is_selected() -> None:
    selected = model.select(torch.tensor([[[0.0] * 4, [0.0] * 4, [1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 2.0]]]), 2)
    assert selected.int().tolist() == [[[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 0, 0], [1, 0, 0, 1]]]


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="no transformers to compare with")
def test_transformers_computes_the_same_logits_past_the_selection(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import GlmMoeDsaForCausalLM

    theirs = GlmMoeDsaForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32, attn_implementation="eager").eval()
    for layer in theirs.model.layers:
        # Their class has 1e-6; this model was trained with the configuration's epsilon everywhere.
        layer.self_attn.q_a_layernorm.variance_epsilon = CONFIG.rms_norm_eps
        layer.self_attn.kv_a_layernorm.variance_epsilon = CONFIG.rms_norm_eps
    trunk: Model = LOADED[0]
    monkeypatch.setattr(model, "select", any_of_equals)
    ids = next(batches(5, lambda length: length > CONFIG.index_topk))[-1].ids[-1:]
    assert ids.shape[1] > CONFIG.index_topk + 20
    with torch.no_grad():
        ours = trunk.logits(trunk(ids, sparse=True))
        assert (ours - theirs(ids).logits).abs().max() < 1e-4
        assert (ours - trunk.logits(trunk(ids))).abs().max() > 1e-3


def test_a_chain_of_drafts_is_what_its_rows_give_one_by_one() -> None:
    trunk, mtp = LOADED
    ids = next(batches(6))[0].ids[:1]
    with torch.no_grad():
        hidden, embedded = trunk(ids[:, :-1]), trunk.embed_tokens[ids[:, 1:]]
        chained = mtp(embedded, hidden, 4)
        at = 8
        rows = [hidden[:, n] for n in range(at + 1)]
        for draft, output in enumerate(chained):
            alone = mtp(embedded[:, : at + 1 + draft], torch.stack(rows, 1), 1)[0][:, -1]
            torch.testing.assert_close(alone, output[:, at + draft], atol=1e-4, rtol=1e-4)
            rows.append(alone)


def held_out() -> list[Example]:
    entries = json.loads(HELD_OUT.read_text("utf-8"))
    return [
        Example(
            entry["category"],
            (*entry["messages"], entry["answer"]),
            entry["reasoning_effort"],
            tuple(entry.get("tools", ())),
            tuple(m["content"] for m in entry["messages"] if m["role"] == "user"),
        )
        for entry in entries
    ]


def test_the_noted_questions_were_held_out_and_are_answered_right() -> None:
    encoder = Encoder()
    noted = held_out()
    assert {"tool call", "tool result", "json"} <= {example.category for example in noted}
    for category in {example.category for example in noted}:
        examples = [example for example in noted if example.category == category]
        prompts = [
            encoder.tokenizer.encode(encoder.template.prompt(one), add_special_tokens=False).ids for one in examples
        ]
        answers = greedy(LOADED[0], prompts, STOP_IDS)
        given = [prompt + answer.ids for prompt, answer in zip(prompts, answers, strict=True)]
        assert given == [encoder.encode(one).ids for one in examples]


def test_drafts_of_the_next_token_layer_are_mostly_right() -> None:
    trunk: Model
    mtp: Mtp
    trunk, mtp = LOADED
    encoder = Encoder()
    counts = []
    for example in [example for chosen in drawn(2).values() for example in chosen]:
        prompt = encoder.tokenizer.encode(encoder.template.prompt(example), add_special_tokens=False).ids
        answer = greedy(trunk, [prompt], STOP_IDS)[0].ids
        counts.append(tokens_per_step(trunk, mtp, prompt, answer, 3))
    tokens, steps = (sum(column) for column in zip(*counts, strict=True))
    assert tokens / steps > 1.5


def test_no_example_of_the_evaluation_is_drawn_twice() -> None:
    for chosen in drawn(5).values():
        keys = [json.dumps([example.messages, example.tools, example.effort]) for example in islice(chosen, 5)]
        assert len(set(keys)) == len(keys)
