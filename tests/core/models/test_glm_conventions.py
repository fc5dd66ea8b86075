"""Every wrong convention that an engine was once shipped with moves the golden logits ten times as far as parity allows, and more.

So the tests of parity would fail with it. Each is put into the family here as it was reported of others.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from glmserve.models.glm_moe_dsa import indexer, mla
from glmserve.models.glm_moe_dsa.config import read_config
from glmserve.models.glm_moe_dsa.mla import LatentAttention
from glmserve.models.glm_moe_dsa.model import GlmMoeDsaModel
from glmserve.models.glm_moe_dsa.moe import Mixture
from glmserve.models.rope import rotate, rotate_pairs

from .formulas import compute
from .glm import load, logits_in_cuts, prompt
from .seeded import Tensors, golden_config, golden_outputs, seeded_tensors, write, write_seeded

TOLERANCE = 1e-4
CAUGHT = 10 * TOLERANCE
CUTS = {"whole": [(24, True)], "decoded alone": [(1, False)] * 24}
Wrong = Callable[[GlmMoeDsaModel, pytest.MonkeyPatch], None]


def half_split_attention(model: GlmMoeDsaModel, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(mla, "rotate_pairs", rotate)


def half_split_indexer(model: GlmMoeDsaModel, patch: pytest.MonkeyPatch) -> None:
    """DeepSeek-V3.2's. Pitfall 1."""
    patch.setattr(indexer, "rotate_pairs", rotate)


def rotation_last_in_the_indexer(model: GlmMoeDsaModel, patch: pytest.MonkeyPatch) -> None:
    """As in attention, where the rotated elements are the last ones."""

    def rotated(self: Any, x: torch.Tensor, call: Any) -> torch.Tensor:
        keep = x.shape[-1] - model.config.rope_dim
        return torch.cat((x[..., :keep], rotate_pairs(x[..., keep:], call.cosine, call.sine)), -1)

    patch.setattr(indexer.Indexer, "_rotated", rotated)


def dense_attention(model: GlmMoeDsaModel, patch: pytest.MonkeyPatch) -> None:
    """The indexer silently left out. Pitfall 9."""
    for module in (indexer, mla):
        patch.setattr(module, "dense_rows", lambda place, topk: place.num_rows)


def shared_layers_attend_to_all(model: GlmMoeDsaModel, patch: pytest.MonkeyPatch) -> None:
    """The selection applied where there is an indexer only. Pitfall 10."""
    own = LatentAttention.__call__

    def call(self: Any, hidden: torch.Tensor, where: Any, selection: Any) -> Any:
        if self.indexer is not None:
            return own(self, hidden, where, selection)
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(mla, "dense_rows", lambda place, topk: place.num_rows)
            out, _ = own(self, hidden, where, [None] * len(where.where))
        return out, selection

    patch.setattr(LatentAttention, "__call__", call)


def shared_layers_select_for_themselves(model: GlmMoeDsaModel, patch: pytest.MonkeyPatch) -> None:
    """With whatever indexer is at hand. Pitfalls 2 and 3."""
    for before, layer in zip(model.layers, model.layers[1:], strict=False):
        if layer.attention.indexer is None:
            layer.attention.indexer = before.attention.indexer


def shared_layers_take_the_first_selection(model: GlmMoeDsaModel, patch: pytest.MonkeyPatch) -> None:
    """Not that of the nearest full layer before them."""
    own = LatentAttention.__call__
    first: list[Any] = []

    def call(self: Any, hidden: torch.Tensor, where: Any, selection: Any) -> Any:
        if selection is None:
            first.clear()
        out, used = own(self, hidden, where, selection if self.indexer is not None else first[0])
        first.append(used)
        return out, used

    patch.setattr(LatentAttention, "__call__", call)


def bias_in_bfloat16(model: GlmMoeDsaModel, patch: pytest.MonkeyPatch) -> None:
    """Pitfall 5."""
    for mixture in mixtures(model):
        mixture._bias = mixture._bias.bfloat16().float()


def router_in_bfloat16(model: GlmMoeDsaModel, patch: pytest.MonkeyPatch) -> None:
    """Pitfall 6."""
    for mixture in mixtures(model):
        exact: Any = mixture._router
        patch.setattr(mixture, "_router", lambda x, exact=exact: exact(x.bfloat16().float()).bfloat16().float())


def weights_from_biased_scores(model: GlmMoeDsaModel, patch: pytest.MonkeyPatch) -> None:
    """Pitfall 7."""

    def route(self: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        best = (self._router(x).sigmoid() + self._bias).topk(model.config.experts_per_token)
        return best.indices, best.values / best.values.sum(-1, keepdim=True) * model.config.routed_scale

    patch.setattr(Mixture, "route", route)


def weights_that_do_not_add_up(model: GlmMoeDsaModel, patch: pytest.MonkeyPatch) -> None:
    """The other halves of pitfall 7: neither renormalised nor scaled."""

    def route(self: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = self._router(x).sigmoid()
        chosen = (scores + self._bias).topk(model.config.experts_per_token).indices
        return chosen, scores.gather(1, chosen)

    patch.setattr(Mixture, "route", route)


def keys_without_their_bias(model: GlmMoeDsaModel, patch: pytest.MonkeyPatch) -> None:
    """Pitfall 4."""
    for layer in model.layers:
        if layer.attention.indexer is not None:
            layer.attention.indexer._norm_bias.zero_()


def scale_of_the_latent(model: GlmMoeDsaModel, patch: pytest.MonkeyPatch) -> None:
    """Of the width that absorbed queries have, in place of the expanded one's."""
    config = model.config
    own = LatentAttention._absorbed
    wrong = ((config.nope_dim + config.rope_dim) / config.latent_width) ** 0.5
    patch.setattr(LatentAttention, "_absorbed", lambda self, queries: own(self, queries) * wrong)


def mixtures(model: GlmMoeDsaModel) -> list[Mixture]:
    return [layer.mlp for layer in model.layers if isinstance(layer.mlp, Mixture)]


WRONG: list[Wrong] = [
    half_split_attention,
    half_split_indexer,
    rotation_last_in_the_indexer,
    dense_attention,
    shared_layers_attend_to_all,
    shared_layers_select_for_themselves,
    shared_layers_take_the_first_selection,
    bias_in_bfloat16,
    router_in_bfloat16,
    weights_from_biased_scores,
    weights_that_do_not_add_up,
    keys_without_their_bias,
    scale_of_the_latent,
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("golden")
    write_seeded(made, golden_config())
    return made


@pytest.fixture(scope="module")
def golden() -> Tensors:
    return golden_outputs()


@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.__name__)
def test_a_wrong_convention_is_caught(
    directory: Path, golden: Tensors, wrong: Wrong, cuts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, model = golden["prompt_ids"].tolist(), load(directory)
    assert (logits_in_cuts(model, ids, CUTS[cuts]) - golden["logits"]).abs().max() < TOLERANCE
    wrong(model, monkeypatch)
    assert (logits_in_cuts(model, ids, CUTS[cuts]) - golden["logits"]).abs().max() > CAUGHT


def test_the_epsilon_of_the_keys_is_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pitfall 4: 1e-6, not rms_norm_eps. Keys of the golden model are too large to tell; small ones do."""
    config, ids = golden_config(), prompt(24, vocabulary=512)
    tensors = seeded_tensors(read_config(config))
    for name, tensor in tensors.items():
        if name.endswith("indexer.wk.weight"):
            tensor *= 1e-3
    write(tmp_path, config, tensors)
    expected = compute(config, tensors, ids).logits
    assert (logits_in_cuts(load(tmp_path), ids, CUTS["whole"]) - expected).abs().max() < TOLERANCE
    monkeypatch.setattr(indexer, "KEY_NORM_EPS", 1e-5)
    assert (logits_in_cuts(load(tmp_path), ids, CUTS["whole"]) - expected).abs().max() > CAUGHT
