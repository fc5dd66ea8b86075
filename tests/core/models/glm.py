"""Tiny random checkpoints of `glm_moe_dsa` that transformers writes and computes, and calls of our model over pages."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from glmserve.api import Quantization
from glmserve.models.dense import Dense
from glmserve.models.glm_moe_dsa import GlmMoeDsa
from glmserve.models.glm_moe_dsa.call import dense_rows
from glmserve.models.glm_moe_dsa.layer import DecoderLayer
from glmserve.models.glm_moe_dsa.mla import LatentAttention
from glmserve.models.glm_moe_dsa.model import GlmMoeDsaModel
from glmserve.store.checkpoint import open_checkpoint
from safetensors.torch import save_file

from .paged import PAGE_TOKENS, forward

VOCABULARY = 97
ORACLE_EPS = 1e-6
"""Of the latent norms in transformers' class."""
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "n_shared_experts": 1,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "routed_scaling_factor": 2.5,
    "norm_topk_prob": True,
    "n_group": 1,
    "topk_group": 1,
    "kv_lora_rank": 32,
    "q_lora_rank": 48,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 24,
    "v_head_dim": 32,
    "index_topk": 8,
    "index_head_dim": 32,
    "index_n_heads": 8,
    "first_k_dense_replace": 3,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": [1],
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_theta": 8e6, "rope_type": "default"},
}
ODD: dict[str, Any] = {
    "index_topk": 37,
    "kv_lora_rank": 20,
    "v_head_dim": 9,
    "qk_nope_head_dim": 11,
    "index_head_dim": 18,
    "n_routed_experts": 11,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 27,
}
"""Sizes that leave something over everywhere: vectors and threads."""
Tensors = dict[str, torch.Tensor]


def indexer_types(layers: int) -> list[str]:
    """GLM-5.2's and 5.3's schedule: every fourth layer from the third on, and all before it."""
    return ["full" if max(i - 2, 0) % 4 == 0 else "shared" for i in range(layers)]


def write_random(directory: Path, seed: int = 0, nextn: bool = False, **changes: Any) -> Any:
    """A transformers model whose choices matter, saved in float32 under the names of the published checkpoints."""
    theirs = pytest.importorskip("transformers")
    torch.manual_seed(seed)
    shape = {**SHAPE, **changes}
    shape.setdefault("indexer_types", indexer_types(shape["num_hidden_layers"]))
    shape["first_k_dense_replace"] = min(shape["first_k_dense_replace"], shape["num_hidden_layers"] - 1)
    config = theirs.GlmMoeDsaConfig(**shape, attn_implementation="eager")
    reference = theirs.GlmMoeDsaForCausalLM(config).eval().float()
    with torch.no_grad():
        for name, tensor in [*reference.named_parameters(), *reference.named_buffers()]:
            if "inv_freq" not in name:
                tensor.copy_(random_like(name, tensor.shape))
    tensors = unfused(reference.state_dict())
    if nextn:
        tensors |= nextn_tensors(tensors, shape["num_hidden_layers"], shape["hidden_size"])
    save_file(tensors, directory / "model.safetensors")
    settings = reference.config.to_dict() | {
        "architectures": ["GlmMoeDsaForCausalLM"],
        "num_nextn_predict_layers": int(nextn),
        "latent_norm_eps": ORACLE_EPS,
    }
    (directory / "config.json").write_text(json.dumps(settings, default=str))
    return reference


def random_like(name: str, shape: Sequence[int]) -> torch.Tensor:
    """Of torch's global generator: matrices that keep the size of their input, biases of experts as in real models."""
    if name.endswith("e_score_correction_bias"):
        return 6.94 + 0.06 * torch.randn(*shape)
    if name.endswith("norm.bias"):
        return 0.2 * torch.randn(*shape)
    if len(shape) == 1:
        return 1 + 0.2 * torch.randn(*shape)
    return torch.randn(*shape) * (1 if "embed_tokens" in name else 1 / math.sqrt(shape[-1]))


def unfused(state: Tensors) -> Tensors:
    """transformers holds the experts of a layer in one tensor; checkpoints hold them one by one."""
    found = {}
    for name, value in state.items():
        prefix, fused, kind = name.partition("mlp.experts.")
        for e, expert in enumerate(value) if fused else ():
            parts = zip(("gate_proj", "up_proj"), expert.chunk(2), strict=True) if "gate_up" in kind else ()
            for part, weight in parts or (("down_proj", expert),):
                found[f"{prefix}mlp.experts.{e}.{part}.weight"] = weight.clone()
        if not fused:
            found[name] = value.clone()
    return found


def nextn_tensors(tensors: Tensors, layers: int, hidden: int) -> Tensors:
    """Random ones of a next-token-prediction layer: those of a full sparse layer, and its own four."""
    sparse = f"model.layers.{layers - 1}."
    shapes = {name.removeprefix(sparse): t.shape for name, t in tensors.items() if name.startswith(sparse)}
    first = "model.layers.0.self_attn.indexer."
    indexer = {name.removeprefix("model.layers.0."): t.shape for name, t in tensors.items() if name.startswith(first)}
    norms = dict.fromkeys(("enorm.weight", "hnorm.weight", "shared_head.norm.weight"), torch.Size([hidden]))
    everything = {**shapes, **indexer, **norms, "eh_proj.weight": torch.Size([hidden, 2 * hidden])}
    return {f"model.layers.{layers}.{name}": random_like(name, shape) for name, shape in everything.items()}


def load(path: Path, kv_dtype: str = "float32", quantization: type[Quantization] = Dense) -> GlmMoeDsaModel:
    checkpoint = open_checkpoint(path)
    family = GlmMoeDsa()
    model = family.load(checkpoint, quantization(), family.describe(checkpoint.config, kv_dtype))
    assert isinstance(model, GlmMoeDsaModel)
    return model


def new_pools(model: Any, pages: int, seed: int | None = None) -> dict[str, torch.Tensor]:
    """Zeros, or with a seed the random remains of a context in the model's own types."""
    made = {}
    for paged in model.info.paged:
        pool = torch.zeros(pages, PAGE_TOKENS, *paged.per_token)
        if seed is not None:
            pool.normal_(generator=torch.Generator().manual_seed(seed)).abs_()
        made[paged.name] = pool.to(getattr(torch, paged.dtype))
    return made


def logits_in_cuts(model: Any, ids: list[int], cuts: Sequence[tuple[int, bool]]) -> torch.Tensor:
    """Over scattered pages, so that none of the calls can lean on their order."""
    count = -(-len(ids) // PAGE_TOKENS)
    pages = torch.randperm(count + 3, generator=torch.Generator().manual_seed(5))[:count].tolist()
    pools = new_pools(model, count + 3)
    out, start = [], 0
    for rows, chunk in cuts:
        out.append(forward(model, pools, (ids[start : start + rows], start, pages, chunk)))
        start += rows
    assert start == len(ids)
    return torch.cat(out)


def prompt(length: int, seed: int = 1, vocabulary: int = VOCABULARY) -> list[int]:
    found: list[int] = torch.randint(0, vocabulary, (length,), generator=torch.Generator().manual_seed(seed)).tolist()
    return found


def clear_prompt(reference: Any, length: int) -> list[int]:
    """A prompt on which no choice of a token or an expert is as close as the rounding of float32.

    Of two scores that close either may win, and the logits of both outcomes are right.
    """
    for seed in range(1, 60):
        ids = prompt(length, seed, reference.config.vocab_size)
        if closest_choice(reference, ids) > 2e-6:
            return ids
    raise AssertionError("every prompt has a choice that is too close")


def closest_choice(reference: Any, ids: list[int]) -> float:
    """The least distance between a score that was chosen and one that was not."""
    gaps: list[float] = []
    own = torch.topk

    def record(scores: torch.Tensor, k: int, *rest: Any, **more: Any) -> Any:
        if k < scores.shape[-1]:
            best = own(scores, k + 1).values
            gap = best[..., k - 1] - best[..., k]
            gaps.extend(gap[best[..., k - 1] > -1e30].flatten().tolist())  # the rest is masked
        return own(scores, k, *rest, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "topk", record)
        patch.setattr(torch.Tensor, "topk", record)
        expected(reference, ids)
    return min(gaps, default=1.0)


def expected(reference: Any, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = reference(torch.tensor([ids]), use_cache=False).logits[0]
    return logits


def expected_sets(reference: Any, ids: list[int]) -> list[list[set[int]]]:
    """By layer and row, the positions that transformers' layer attends to."""
    found: list[list[set[int]]] = []

    def record(module: Any, inputs: Any, outputs: Any) -> None:
        topk = module.config.index_topk
        rows = outputs[2][0].tolist()
        found.append([set(row) if i >= topk else set(range(i + 1)) for i, row in enumerate(rows)])

    hooks = [layer.self_attn.register_forward_hook(record) for layer in reference.model.layers]
    expected(reference, ids)
    for hook in hooks:
        hook.remove()
    return found


@contextmanager
def recorded_sets(
    model: GlmMoeDsaModel, rows: int, layers: Sequence[DecoderLayer] = ()
) -> Iterator[list[list[set[int]]]]:
    """By layer (the model's, or those that are given) and row, what they attend to in the calls made within."""
    layers = layers or model.layers
    found: list[list[set[int]]] = [[set() for _ in range(rows)] for _ in layers]
    layer_of = {id(layer.attention): i for i, layer in enumerate(layers)}
    topk = model.config.index_topk
    own = LatentAttention.__call__

    def record(self: Any, hidden: torch.Tensor, call: Any, selection: Any) -> Any:
        out, used = own(self, hidden, call, selection)
        for place, chosen in zip(call.where, used, strict=True):
            dense = dense_rows(place, topk)
            for i in range(place.num_rows):
                position = place.start + i
                seen = set(range(position + 1)) if i < dense else set(chosen[i - dense].tolist())
                found[layer_of[id(self)]][position] = seen
        return out, used

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LatentAttention, "__call__", record)
        yield found
