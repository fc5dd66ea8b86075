"""The tensor headers that a checkpoint will have, written from its configuration."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from glmserve.api import Checkpoint, CheckpointError, TensorInfo
from glmserve.models.config import Keys
from glmserve.models.glm_moe_dsa.config import FAMILY, GlmConfig

from .components import Component, component_of, layer_of
from .facts import PLAIN, Facts, Widths
from .glm_moe_dsa import known_config, tensor_shapes

if TYPE_CHECKING:
    import torch

EXL3_BLOCK = 128
"""EXL3 pads both sides of a matrix to whole blocks of its Hadamard rotation."""
FP8_BLOCK = 128
"""Rows and columns of a block-FP8 matrix that share a scale."""

_MATRICES = {Component.ATTENTION, Component.DENSE_MLP, Component.ROUTED, Component.SHARED}

Stored = Callable[[str, tuple[int, ...]], Iterable[TensorInfo]]
"""How one tensor of the model is stored: (name, shape) -> the tensors of the file."""


class PlannedCheckpoint(Checkpoint):
    """Headers without a file. Reading a tensor is an error."""

    format = "safetensors"

    def __init__(self, facts: Facts, path: Path) -> None:
        """Raises CheckpointError when the facts are of an architecture whose shapes the plan does not know."""
        self.path = path
        self.config = facts.config
        glm = known_config(facts.config)
        if glm is None:
            raise CheckpointError(
                f"{path} is not here, and facts of {facts.config.get('architectures')!r} cannot stand in for its "
                f"headers: they do so for family {FAMILY} only. Drop model.facts, or name others."
            )
        stored = _stored(facts, glm)
        found = (info for name, shape in tensor_shapes(glm).items() for info in stored(name, shape))
        self.tensors = {info.name: info for info in found}
        self.fingerprint = sha256(json.dumps(facts.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()

    def read(self, name: str, rows: range | None = None, columns: range | None = None) -> torch.Tensor:
        raise CheckpointError(f"{self.path} is not here: only its headers are known, and {name!r} cannot be read.")

    def read_rows(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        return self.read(name)


def _stored(facts: Facts, glm: GlmConfig) -> Stored:
    method = Keys(facts.config).section("quantization_config").get("quant_method")
    if method is None:
        return _plain
    if method == "fp8":
        return lambda name, shape: _fp8(name, shape)
    if method == "exl3" and facts.widths is not None:
        widths = facts.widths
        return lambda name, shape: _exl3(name, shape, _width(name, widths, glm))
    raise CheckpointError(
        f"The facts store weights as {method!r}, which the plan knows for fp8, for exl3 with widths, and for none."
    )


def _plain(name: str, shape: tuple[int, ...]) -> Iterable[TensorInfo]:
    # The correction bias of the router decides by small differences of large numbers.
    dtype, size = ("F32", 4) if name.endswith("e_score_correction_bias") else ("BF16", 2)
    yield TensorInfo(name, shape, dtype, math.prod(shape) * size)


def _fp8(name: str, shape: tuple[int, ...]) -> Iterable[TensorInfo]:
    """Matrices of attention, indexer keys and queries, and MLPs in e4m3, a float32 scale a block of 128 x 128."""
    layer = layer_of(name)
    matrix = len(shape) == 2 and component_of(layer, 1 << 30) in _MATRICES
    if not (matrix or layer.endswith((".wq_b", ".wk"))):
        yield from _plain(name, shape)
        return
    yield TensorInfo(name, shape, "F8_E4M3", math.prod(shape))
    blocks = tuple(math.ceil(side / FP8_BLOCK) for side in shape)
    yield TensorInfo(f"{name}_scale_inv", blocks, "F32", 4 * math.prod(blocks))


def _exl3(name: str, shape: tuple[int, ...], bits: float) -> Iterable[TensorInfo]:
    """A trellis [in / 16, out / 16, 16 bits], float16 scales of both sides, and the marker of the codebook."""
    if bits == PLAIN:
        yield from _plain(name, shape)
        return
    layer = layer_of(name)
    out, inner = (EXL3_BLOCK * math.ceil(side / EXL3_BLOCK) for side in shape)
    # `bits` may be an average over layers, which no single trellis has: its bytes are right, its last side is rounded.
    trellis = round(out * inner * bits / 8)
    yield TensorInfo(f"{layer}.trellis", (inner // 16, out // 16, round(16 * bits)), "I16", trellis)
    yield TensorInfo(f"{layer}.suh", (inner,), "F16", 2 * inner)
    yield TensorInfo(f"{layer}.svh", (out,), "F16", 2 * out)
    yield TensorInfo(f"{layer}.mul1", (), "I32", 4)


def _width(name: str, widths: Widths, glm: GlmConfig) -> float:
    """Bits a weight of the tensor; 16 for all that EXL3 leaves alone."""
    layer = layer_of(name)
    within = component_of(layer, 1 << 30)
    if within is Component.ROUTED:
        mtp = component_of(layer, glm.layers) is Component.MTP
        return widths.next_token_experts if mtp else widths.experts
    if within is Component.HEAD:
        return widths.head
    # The absorbed form of attention needs kv_b_proj as a plain matrix; of the indexer only wq_b is large.
    quantized = within in _MATRICES and not layer.endswith(".kv_b_proj") and not name.endswith("eh_proj.weight")
    return widths.linears if quantized or layer.endswith(".wq_b") else PLAIN
