"""Every hook of glmserve. A hook returns provider classes; a profile picks one by its `name`.

A plugin is a module that implements any of these and is named by an entry point in the group "glmserve":

    from glmserve.api import Drafter, hookimpl

    @hookimpl
    def drafters():
        return [MyDrafter]

Hooks run once, when providers are collected, never in the per-token loop. A function marked with `hookimpl` whose name
is not below is an error, and so are two providers of one seam with the same name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from .caching import PrefixCache
    from .drafting import Drafter
    from .models import ModelFamily
    from .quantization import Quantization
    from .transport import Transport

hookspec = pluggy.HookspecMarker("glmserve")
hookimpl = pluggy.HookimplMarker("glmserve")


@hookspec
def quantizations() -> list[type[Quantization]]:  # type: ignore[empty-body]
    """Ways to store and multiply weights.

    >>> @hookimpl
    ... def quantizations(): return [Exl3]
    """


@hookspec
def drafters() -> list[type[Drafter]]:  # type: ignore[empty-body]
    """Ways to guess the next tokens."""


@hookspec
def prefix_caches() -> list[type[PrefixCache]]:  # type: ignore[empty-body]
    """Ways to remember computed prefixes."""


@hookspec
def transports() -> list[type[Transport]]:  # type: ignore[empty-body]
    """Ways for ranks to reach each other."""


@hookspec
def model_families() -> list[type[ModelFamily]]:  # type: ignore[empty-body]
    """Architectures that can be run."""
