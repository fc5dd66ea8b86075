"""The provider of the family, and its check of a checkpoint's tensors."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from glmserve.api import Checkpoint, LinearSpec, Model, ModelFamily, ModelInfo, Parallel, Quantization

from ..config import Keys
from ..entries import FLOAT8, PLAIN, check_kv_dtype
from ..tensors import check_tensors
from .config import FAMILY, FLASH, LATENT_NORM_EPS, GlmConfig, read_config
from .layout import EMBEDDING, FINAL_NORM, Shapes, at, info_of, layer_vectors, nextn_linears, nextn_vectors, unread
from .model import GlmMoeDsaModel, kv_dtype_of
from .source import Source, check_spread

log = logging.getLogger("glmserve.models")


class GlmMoeDsa(ModelFamily):
    name = FAMILY
    # Flash is claimed so that it is refused by its name, and not as something unknown.
    architectures = frozenset({"GlmMoeDsaForCausalLM", FLASH})
    capabilities = frozenset({"taps", "next-token", "context"})
    options = frozenset({LATENT_NORM_EPS})

    def describe(self, config: Mapping[str, Any], kv_dtype: str) -> ModelInfo:
        check_kv_dtype(kv_dtype, (*PLAIN, FLOAT8), self.name)
        return info_of(read_config(config), kv_dtype, Keys(config).token_ids("eos_token_id"))

    def load(
        self,
        checkpoint: Checkpoint,
        quantization: Quantization,
        info: ModelInfo,
        parallel: Parallel = Parallel(),  # noqa: B008 - immutable
        resident: bool = True,
    ) -> Model:
        config = read_config(checkpoint.config)
        check_spread(config, parallel.size)
        _check_tensors(checkpoint, quantization, config, info)
        return GlmMoeDsaModel(Source(checkpoint, quantization, config, kv_dtype_of(info), parallel), info, resident)


def _check_tensors(checkpoint: Checkpoint, quantization: Quantization, config: GlmConfig, info: ModelInfo) -> None:
    """Every tensor has its place, and every place its tensor.

    A shared layer's indexer, which some converters write, may be there and is not read. The next-token-prediction layer
    is there as a whole or not at all: without it the model serves, only a drafter is lost.
    """
    needed: Shapes = {
        EMBEDDING: (config.vocab_size, config.hidden),
        FINAL_NORM: (config.hidden,),
        **_stored(checkpoint, quantization, info.linears),
    }
    for i, (full, sparse) in enumerate(zip(config.full_indexer, config.sparse_mlp, strict=True)):
        needed |= layer_vectors(config, i, full, sparse)
    if config.nextn_layers:
        if any(name.startswith(f"{at(config.layers)}.") for name in checkpoint.tensors):
            needed |= _stored(checkpoint, quantization, nextn_linears(config)) | nextn_vectors(config)
        else:
            log.warning(
                "%s announces a next-token-prediction layer, but holds no tensor of layer %d: it serves, but drafter "
                "'mtp' cannot run.",
                checkpoint.path,
                config.layers,
            )
    ignored = [name for name in checkpoint.tensors if name.startswith(unread(config))]
    check_tensors(checkpoint, needed, {}, ignored)


def _stored(
    checkpoint: Checkpoint, quantization: Quantization, linears: tuple[LinearSpec, ...] | list[LinearSpec]
) -> Shapes:
    shapes: Shapes = {}
    for spec in linears:
        shapes |= quantization.stored_tensors(checkpoint, spec)
    return shapes
