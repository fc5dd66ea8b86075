"""The built-in providers, registered like those of any other plugin.

Providers are imported inside the hooks, so that importing this module costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from glmserve.api import hookimpl

if TYPE_CHECKING:
    from glmserve.api import Drafter, ModelFamily, PrefixCache, Quantization, Transport


@hookimpl
def quantizations() -> list[type[Quantization]]:
    from glmserve.models.block_fp8 import BlockFp8
    from glmserve.models.dense import Dense
    from glmserve.models.gguf import Gguf

    return [BlockFp8, Dense, Gguf]


@hookimpl
def drafters() -> list[type[Drafter]]:
    from glmserve.engine.drafters import NgramDrafter, NoDrafter
    from glmserve.engine.mtp import MtpDrafter

    return [NoDrafter, NgramDrafter, MtpDrafter]


@hookimpl
def prefix_caches() -> list[type[PrefixCache]]:
    from glmserve.engine.caches import NoCache

    return [NoCache]


@hookimpl
def transports() -> list[type[Transport]]:
    from glmserve.cluster.local import LocalTransport

    return [LocalTransport]


@hookimpl
def model_families() -> list[type[ModelFamily]]:
    from glmserve.models.glm_moe_dsa import GlmMoeDsa
    from glmserve.models.llama import Llama

    return [GlmMoeDsa, Llama]
