"""Drafter `mtp` on Tiny GLM: what it proposes, how often that is right, and that it changes speed alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from glmserve.api import CheckpointError, ConfigError, Drafter, ForwardBatch, PluginError, PrefixCache, Segment
from glmserve.engine.caches import NoCache
from glmserve.engine.drafters import NoDrafter
from glmserve.engine.engine import Engine
from glmserve.engine.mtp import MAX_DEPTH, MtpDrafter
from glmserve.models.dense import Dense
from glmserve.models.glm_moe_dsa import GlmMoeDsa
from glmserve.models.glm_moe_dsa.model import GlmMoeDsaModel
from glmserve.plugins import load_plugins
from glmserve.store.checkpoint import open_checkpoint
from glmserve_model_tiny_glm import CHECKPOINT
from recipe import checkpoint
from recipe.batches import Encoder
from recipe.corpus import Example
from recipe.tokenizer import STOP_IDS

from ..engine import tiny
from ..engine.test_exact import Memory

HELD_OUT = json.loads((Path(__file__).parents[3] / "models" / "tiny_glm" / "held_out.json").read_text("utf-8"))
TRUNK, LAYER = checkpoint.load()


def load(kv_dtype: str = "float32") -> GlmMoeDsaModel:
    opened, family = open_checkpoint(CHECKPOINT), GlmMoeDsa()
    model = family.load(opened, Dense(), family.describe(opened.config, kv_dtype))
    assert isinstance(model, GlmMoeDsaModel)
    return model


MODEL = load()


def engine(drafter: type[Drafter], cache: type[PrefixCache] = NoCache, **options: int) -> Engine:
    sizes = {"max_context": 1024, "kv_tokens": 8192, "page_tokens": 16, "prefill_chunk": 64} | options
    return tiny.make_engine(MODEL, drafter, cache, **sizes)


def prompts(each: int = 1) -> list[list[int]]:
    """Held-out questions, `each` of every category, as the template writes them."""
    encoder, taken, found = Encoder(), dict[str, int](), []
    for entry in HELD_OUT:
        if taken.setdefault(entry["category"], 0) < each:
            taken[entry["category"]] += 1
            messages = (*entry["messages"], entry["answer"])
            example = Example(entry["category"], messages, entry["reasoning_effort"], tuple(entry.get("tools", ())))
            found.append(encoder.tokenizer.encode(encoder.template.prompt(example), add_special_tokens=False).ids)
    return found


def hidden_of(ids: Sequence[int]) -> torch.Tensor:
    """[tokens, hidden] after the final norm, from one call of the model."""
    pools = {p.name: torch.zeros(len(ids) // 16 + 1, 16, *p.per_token) for p in MODEL.info.paged}
    places = torch.arange(len(ids))
    segment = Segment(0, len(ids), 0, torch.arange(len(ids) // 16 + 1), True)
    batch = ForwardBatch(
        torch.tensor(ids), places, places, [segment], torch.arange(0), 16, taps=(MODEL.info.num_layers,)
    )
    with torch.inference_mode():
        return MODEL.forward(batch, pools).taps[MODEL.info.num_layers]


def attached() -> MtpDrafter:
    drafter = MtpDrafter(MODEL.info, {})
    drafter.attach(MODEL)
    return drafter


def observe(drafter: MtpDrafter, ids: Sequence[int], start: int, end: int, hidden: torch.Tensor) -> None:
    drafter.observe(1, start, ids[start:end], {MODEL.info.num_layers: hidden[start:end]})


@pytest.mark.parametrize("cuts", [(1,), (7, 8, 9), (40,), (1, 33, 34, 70)])
def test_a_chain_is_that_of_the_layer_as_it_was_trained(cuts: tuple[int, ...]) -> None:
    """The trained layer joins normalised hidden states in both places: carried raw, a chain would differ (11)."""
    ids = next(p for p in prompts() if len(p) > 80)[:80]
    hidden, drafter = hidden_of(ids), attached()
    for start, end in zip((0, *cuts), (*cuts, 78), strict=True):
        observe(drafter, ids, start, end, hidden)
    drafts: list[int] = []
    for depth in range(1, 4):
        # Rows of the trained layer take the true next token; feed it the drafts as they come.
        told = torch.tensor([[*ids[1:79], *drafts]])
        with torch.no_grad():
            embedded = TRUNK.embed_tokens[told]
            pad = torch.zeros(1, len(drafts), hidden.shape[1])
            outputs = LAYER(embedded, torch.cat((hidden[None, :78], pad), 1), depth)
            drafts.append(int(TRUNK.logits(outputs[-1])[0, -1].argmax()))
    assert drafter.propose(1, ids[78], 3).tokens == tuple(drafts)
    assert drafter.propose(1, ids[78], 3).tokens == tuple(drafts), "a proposal changes nothing observed"


def test_more_than_one_and_a_half_tokens_come_of_a_step_and_first_drafts_hold() -> None:
    """On answers that the model has not seen (12). Depth 1 shows the first draft alone."""
    for depth, least in ((1, 1.5), (4, 2.0)):
        running = engine(MtpDrafter, draft_depth=depth)
        try:
            asked = [tiny.request(p, 64, stop_ids=frozenset(STOP_IDS)) for p in prompts()]
            answers = [tiny.generate(running, [one])[0] for one in asked]
            status = running.status()
        finally:
            running.stop()
        tokens = sum(len(a) + 1 for a in answers)
        assert status.accepted_tokens / max(1, tokens - status.accepted_tokens) > least - 1, (depth, status)
        if depth == 1:
            assert status.accepted_tokens > status.drafted_tokens / 2


@pytest.mark.parametrize("depth", [1, 3, 4, 8])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "seed": 5, "top_p": 0.95}])
def test_drafted_is_serial_token_by_token(depth: int, sampling: dict[str, Any]) -> None:
    """Together, so that a batch holds windows of several lengths (18, 19)."""
    asked = [tiny.request(p, 20 + 7 * i, ignore_eos=True, **sampling) for i, p in enumerate(prompts()[:6])]
    told = []
    for drafter in (NoDrafter, MtpDrafter):
        running = engine(drafter, draft_depth=depth)
        try:
            told.append(tiny.generate(running, asked))
            status = running.status()
        finally:
            running.stop()
    assert told[0] == told[1]
    assert status.accepted_tokens > 0


class Recording(MtpDrafter):
    """Remembers what it was told."""

    last: Recording

    def __init__(self, target: Any, options: Mapping[str, Any]) -> None:
        super().__init__(target, options)
        self.seen: dict[int, list[tuple[int, list[int], Mapping[int, torch.Tensor]]]] = {}
        self.contexts: dict[int, Any] = {}
        Recording.last = self

    def observe(self, sequence: int, start: int, tokens: Sequence[int], taps: Mapping[int, torch.Tensor]) -> None:
        copied = {layer: tensor.clone() for layer, tensor in taps.items()}
        self.seen.setdefault(sequence, []).append((start, list(tokens), copied))
        super().observe(sequence, start, tokens, taps)

    def forget(self, sequence: int) -> None:
        if sequence in self._contexts:
            self.contexts[sequence] = self._contexts[sequence]
        super().forget(sequence)


def test_the_layers_caches_hold_the_targets_rows_at_their_positions_after_every_round() -> None:
    """No drafted row stays (15), and every row has its index key (14), as if nothing had ever been drafted."""
    running = engine(Recording)
    try:
        tiny.generate(running, [tiny.request(prompts()[1], 60, ignore_eos=True)])
    finally:
        running.stop()
    sequence, context = max(Recording.last.contexts.items())
    seen = Recording.last.seen[sequence]
    assert [start for start, _, _ in seen] == [0, *torch.tensor([len(t) for _, t, _ in seen]).cumsum(0).tolist()[:-1]]
    ids = [token for _, tokens, _ in seen for token in tokens]
    hidden = torch.cat([taps[MODEL.info.num_layers] for _, _, taps in seen])
    fresh = attached()
    observe(fresh, ids, 0, len(ids), hidden)
    expected = fresh._contexts[1]
    assert context.rows >= len(ids) - 32
    for paged in MODEL.load_next_token_layer().paged:
        ours, theirs = (c._pools[paged.name].flatten(0, 1)[: context.rows] for c in (context, expected))
        assert torch.allclose(ours, theirs, atol=2e-5), paged.name
        assert (ours.abs().sum(-1) > 0).all(), paged.name


def test_tokens_that_a_cache_restored_are_left_out_and_the_rest_is_drafted() -> None:
    asked = tiny.request([*prompts()[0], *prompts()[1], *prompts()[2]], 40, ignore_eos=True)
    running = engine(MtpDrafter, Memory, prefill_chunk=16)
    serial = engine(NoDrafter, prefill_chunk=16)
    try:
        first, again, expected = (tiny.generate(e, [asked])[0] for e in (running, running, serial))
        status = running.status()
    finally:
        running.stop()
        serial.stop()
    assert first == again == expected
    assert status.cached_tokens > 0
    assert status.accepted_tokens > 0


def test_a_preempted_sequence_starts_anew() -> None:
    asked = [tiny.request(p, 60, ignore_eos=True) for p in prompts()[:4]]
    told = []
    for drafter in (NoDrafter, MtpDrafter):
        running = engine(drafter, max_context=256, kv_tokens=256, prefill_chunk=16)
        try:
            told.append(tiny.generate(running, asked))
            preemptions = running.status().preemptions
        finally:
            running.stop()
    assert told[0] == told[1]
    assert preemptions > 0


def test_a_chain_is_no_longer_than_four() -> None:
    ids = prompts()[0]
    drafter = attached()
    observe(drafter, ids, 0, len(ids), hidden_of(ids))
    assert len(drafter.propose(1, 5, 64).tokens) == MAX_DEPTH
    assert len(drafter.propose(1, 5, 1).tokens) == 1
    assert drafter.propose(2, 5, 4).tokens == ()
    drafter.forget(1)
    drafter.forget(1)
    assert drafter.propose(1, 5, 4).tokens == ()


def test_a_checkpoint_without_the_layer_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """It serves with another drafter (16)."""
    model = load()
    layer = f"model.layers.{model.info.num_layers}."
    checkpoint = model._source.checkpoint
    without = {name: tensor for name, tensor in checkpoint.tensors.items() if not name.startswith(layer)}
    monkeypatch.setattr(checkpoint, "tensors", without)
    with pytest.raises(CheckpointError, match="holds no next-token layer"):
        MtpDrafter(model.info, {}).attach(model)


def test_a_family_without_such_a_layer_is_refused_at_plan_time(tmp_path: Path) -> None:
    plugins = load_plugins(environ={})
    with pytest.raises(PluginError, match="next-token"):
        plugins.check_combination({"family": "llama", "drafter": "mtp"})
    plugins.check_combination({"family": "glm_moe_dsa", "drafter": "mtp"})
    with pytest.raises(CheckpointError, match="'llama' has no next-token layer"):
        tiny.load_model(tiny.write_checkpoint(tmp_path)).load_next_token_layer()


def test_an_option_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="no options; remove depth"):
        MtpDrafter(MODEL.info, {"depth": 2})


def test_its_memory_is_that_of_one_more_layer() -> None:
    names = [paged.name for paged in MODEL.load_next_token_layer().paged]
    assert names == [f"layers.{MODEL.info.num_layers}.latent", f"layers.{MODEL.info.num_layers}.index"]
    assert attached().memory_bytes(10) == 40 * (MODEL.config.latent_width + MODEL.config.index_dim)
