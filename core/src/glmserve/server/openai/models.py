"""Which model is served."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request

from ..errors import HttpError, declared
from .types import ModelCard, ModelList

if TYPE_CHECKING:
    from ..app import Serving

router = APIRouter(prefix="/v1", tags=["openai"])

_STARTED = int(time.time())


def check_model(serving: Serving, name: str) -> None:
    """Raises HttpError 404 when `name` is not served here."""
    if name not in serving.names:
        shown = name if len(name) <= 100 else name[:100] + "..."
        raise HttpError(
            404,
            f"The model {shown!r} is not served here; ask for {serving.name!r} or 'default'.",
            code="model_not_found",
            param="model",
        )


def _card(serving: Serving) -> ModelCard:
    return ModelCard(id=serving.name, created=_STARTED, max_model_len=serving.require_engine().max_context)


@router.get("/models", responses=declared(401, 503))
async def list_models(request: Request) -> ModelList:
    """The served model."""
    return ModelList(data=[_card(request.app.state.serving)])


@router.get("/models/{id:path}", responses=declared(401, 404, 503))
async def show_model(id: str, request: Request) -> ModelCard:
    """One model by its name or as `default`."""
    serving: Serving = request.app.state.serving
    check_model(serving, id)
    return _card(serving)
