"""Parameters and bytes of a checkpoint by component: stored, held by a rank, and read by a rank for a token."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from glmserve.api import Checkpoint, CheckpointError, LinearSpec, ModelInfo, Quantization, TensorInfo
from glmserve.models.glm_moe_dsa.config import GlmConfig
from glmserve.models.glm_moe_dsa.layout import unread

from .components import Component, Split, component_of, layer_of, split_of
from .glm_moe_dsa import tensor_shapes
from .shares import shares

EMBEDDING = "model.embed_tokens"
VECTOR_BYTES = 4
"""An installed quantization holds vectors as float32, an element."""


@dataclass(frozen=True)
class Weights:
    """One component. The parameters are the model's; padding and scales count in bytes only."""

    component: Component
    parameters: int
    active_parameters: int
    """Those that take part in one token."""
    stored_bytes: int
    rank_bytes: int
    """What a rank holds, the one that holds most of it where the ranks differ."""
    read_bytes: int
    """What each rank reads to decode one token alone, without drafts."""


@dataclass(frozen=True)
class _Layer:
    name: str
    tensors: tuple[TensorInfo, ...]


def weigh(
    checkpoint: Checkpoint, tensor: int, quantization: Quantization | None, glm: GlmConfig | None
) -> tuple[Weights, ...]:
    """Every component that the checkpoint has, in order.

    `tensor` ranks share each layer; the figures are of the rank that holds most. An installed `quantization` says what
    it will hold; without one, weights are held as they are stored. `glm` gives the true sizes of padded layers and the
    part of the experts that a token uses. Raises ConfigError when the model cannot be dealt out over so many ranks.
    """
    config = checkpoint.config
    num_layers = int(config.get("num_hidden_layers") or 0)
    # A quantized head is written out even where the source had tied it.
    tied = bool(config.get("tie_word_embeddings")) and "lm_head.trellis" not in checkpoint.tensors
    used = glm.experts_per_token / glm.experts if glm is not None else 1.0
    parts = {} if glm is None else dict(_parameters(tensor_shapes(glm)))
    ignored = () if glm is None else unread(glm)
    cut = shares(config, tensor)
    sums = {component: [0, 0.0, 0, 0, 0.0] for component in Component}
    for layer in _layers(checkpoint.tensors.values()):
        if tied and layer.name == "lm_head":
            continue  # some checkpoints store the tied head a second time
        component = component_of(layer.name, num_layers)
        parameters = parts.get(layer.name) or sum(_elements(info) for info in layer.tensors)
        stored = sum(info.nbytes for info in layer.tensors)
        if layer.name.startswith(ignored):
            sums[component][2] += stored
            continue
        looked_up = layer.name == EMBEDDING and not tied
        largest = cut.vocabulary if layer.name == EMBEDDING and tied else cut.of(layer.name)
        held = _held(checkpoint, layer, largest, None if looked_up else quantization)
        share = {Component.ROUTED: used, Component.MTP: 0.0, Component.EMBEDDING: float(tied)}.get(component, 1.0)
        for i, value in enumerate((parameters, parameters * share, stored, held, held * share)):
            sums[component][i] += value
    return tuple(
        Weights(component, int(n), round(active), int(stored), int(held), round(read))
        for component, (n, active, stored, held, read) in sums.items()
        if n
    )


def check_layers(checkpoint: Checkpoint, glm: GlmConfig) -> None:
    """Every layer has its place, and every place its layer, by the names of the headers.

    The next-token layers may be missing altogether: converters drop them. What nothing reads may be there.
    Raises CheckpointError that names the layers.
    """
    found = {layer_of(name) for name in checkpoint.tensors}
    needed = {layer_of(name) for name in tensor_shapes(glm)}
    mtp = {layer for layer in needed if component_of(layer, glm.layers) is Component.MTP}
    missing = needed - found
    if mtp <= missing:
        missing -= mtp
    unexpected = sorted(name for name in found - needed if not name.startswith(unread(glm)))
    for what, names in (("lacks", sorted(missing)), ("has unexpected", unexpected)):
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise CheckpointError(f"{checkpoint.path} {what} layers: {', '.join(names[:3])}{more}.")


def check_stored(checkpoint: Checkpoint, quantization: Quantization, info: ModelInfo) -> None:
    """Every linear layer is stored as the quantization reads it. Raises CheckpointError that names the first other."""
    for spec in info.linears:
        for name, shape in quantization.stored_tensors(checkpoint, spec).items():
            found = checkpoint.tensors.get(name)
            if found is None:
                raise CheckpointError(
                    f"{checkpoint.path} has no tensor {name!r}, which family {info.family!r} reads with quantization "
                    f"{quantization.name!r}; set model.family and model.quantization to what fits it, or to auto."
                )
            if found.shape != shape:
                raise CheckpointError(
                    f"{checkpoint.path}: tensor {name!r} has shape {list(found.shape)}, but the configuration needs "
                    f"{list(shape)}."
                )


def rank_bytes(info: TensorInfo, largest: Fraction) -> int:
    """Bytes of a stored tensor that a rank with `largest` of its layer holds.

    An EXL3 layer that is cut along its outputs keeps all scales of its inputs, and the other way round: the rotation
    of the side that is not cut is whole on every rank.
    """
    split = split_of(layer_of(info.name))
    suffix = info.name.rpartition(".")[2]
    if split is Split.REPLICATED or not info.shape:
        return info.nbytes
    whole = {Split.ROWS: ("suh", "su"), Split.COLUMNS: ("svh", "sv", "bias")}[split]
    return info.nbytes if suffix in whole else math.ceil(info.nbytes * largest)


def _layers(tensors: Iterable[TensorInfo]) -> Iterable[_Layer]:
    layers: dict[str, list[TensorInfo]] = {}
    for info in tensors:
        layers.setdefault(layer_of(info.name), []).append(info)
    return (_Layer(name, tuple(infos)) for name, infos in layers.items())


def _held(checkpoint: Checkpoint, layer: _Layer, largest: Fraction, quantization: Quantization | None) -> int:
    if quantization is None:
        return sum(rank_bytes(info, largest) for info in layer.tensors)
    held = 0
    for info in layer.tensors:
        if info.name.endswith("weight_scale_inv"):
            continue  # part of what the provider holds for the weight
        if len(info.shape) == 2:
            spec = LinearSpec(layer.name, (layer.name,), (info.shape[0],), info.shape[1])
            held += math.ceil(quantization.memory_bytes(checkpoint, spec) * largest)
        else:  # a bias is cut with its outputs
            part = largest if split_of(layer.name) is Split.ROWS else 1
            held += VECTOR_BYTES * math.ceil(math.prod(info.shape) * part)
    return held


def _parameters(shapes: Mapping[str, tuple[int, ...]]) -> Iterable[tuple[str, int]]:
    sums: dict[str, int] = {}
    for name, shape in shapes.items():
        layer = layer_of(name)
        sums[layer] = sums.get(layer, 0) + math.prod(shape)
    return sums.items()


def _elements(info: TensorInfo) -> int:
    """Parameters by the header alone: an EXL3 trellis has tiles of 16 x 16; scales and markers are none."""
    suffix = info.name.rpartition(".")[2]
    if suffix == "trellis":
        return 256 * info.shape[0] * info.shape[1]
    return 0 if suffix in ("weight_scale_inv", "suh", "svh", "su", "sv", "mcg", "mul1") else math.prod(info.shape)
