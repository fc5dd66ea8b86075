"""Is it alive, is it ready: cheap answers that ask the engine's own progress and generate nothing."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from pydantic import BaseModel

from glmserve.api import UnavailableError

from .errors import declared

if TYPE_CHECKING:
    from .app import Serving

router = APIRouter(tags=["operation"])


class Health(BaseModel):
    status: str
    """Always "ok"; anything else is an error."""


class Version(BaseModel):
    version: str


def unready_reason(serving: Serving) -> str | None:
    """Why no request should be sent here; None when all is well.

    The engine is ready only after a real completion at its start. A long prefill counts as progress, step by step;
    an engine that finishes no step for `settings.stuck_s` seconds does not.
    """
    if serving.draining:
        return "it is shutting down"
    if serving.engine is None:
        return "the model is being loaded"
    status = serving.engine.status()
    if status.state != "ready":
        return status.reason or f"the engine is {status.state}"
    if status.seconds_since_step > serving.settings.stuck_s:
        return f"the engine has finished no step for {status.seconds_since_step:.0f} seconds"
    return None


@router.get("/livez", responses=declared(503))
async def livez(request: Request) -> Health:
    """The process answers, and a restart would not help."""
    serving: Serving = request.app.state.serving
    if serving.engine is not None and (status := serving.engine.status()).state == "failed":
        raise UnavailableError(f"The engine has failed: {status.reason}. Restart the server.")
    return Health(status="ok")


@router.get("/readyz", responses=declared(503))
async def readyz(request: Request) -> Health:
    """The model is loaded, has completed a request, makes progress, and new requests are admitted."""
    reason = unready_reason(request.app.state.serving)
    if reason is not None:
        raise UnavailableError(f"The server is not ready: {reason}.")
    return Health(status="ok")


@router.get("/health", responses=declared(503))
async def health(request: Request) -> Health:
    """The same as /readyz."""
    return await readyz(request)


@router.get("/version", responses=declared(503))
async def show_version() -> Version:
    """The server's version."""
    return Version(version=version("glmserve"))
