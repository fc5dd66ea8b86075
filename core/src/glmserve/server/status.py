"""`/status`: what this server is made of and how it is doing, for people and for dashboards."""

from __future__ import annotations

from dataclasses import asdict
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from pydantic import BaseModel

from .errors import declared

if TYPE_CHECKING:
    from .app import Serving

router = APIRouter(tags=["operation"])


class ComponentLicense(BaseModel):
    id: str
    license: str
    """As declared; empty when nothing is."""
    verdict: str
    """allow or allow-with-conditions: with anything worse the server would not have started."""


class Licenses(BaseModel):
    """The audit that let this server start."""

    use: str
    """run-local or run-commercial."""
    verdict: str
    catalogue: str
    """Version of the reviewed terms."""
    drafter: str
    announcement: str = ""
    """Why another drafter than the profile's drafts."""
    components: list[ComponentLicense]


class Status(BaseModel):
    version: str
    model: str
    exact: bool
    """A request gives the same tokens whatever runs beside it."""
    licenses: Licenses | None
    """None when whoever embeds the server made no audit."""
    engine: dict[str, Any]
    """The engine's counters and state."""


@router.get("/status", responses=declared(503))
async def status(request: Request) -> Status:
    """The model, the licences it was let in with, and the engine's state."""
    serving: Serving = request.app.state.serving
    engine = serving.require_engine()
    return Status(
        version=version("glmserve"),
        model=serving.name,
        exact=engine.exact,
        licenses=serving.licenses,
        engine=asdict(engine.status()),
    )
