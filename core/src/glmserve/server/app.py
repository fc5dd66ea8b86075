"""The ASGI application: routes, and what stands before them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from glmserve.api import UnavailableError

from . import errors, health, metrics, status, tokenize
from .auth import AuthMiddleware, read_keys
from .chat_template import ChatTemplate
from .metrics import CountingMiddleware, Metrics
from .openai import chat, completions, models
from .openai.messages import Message
from .openai.prompt import TemplateInput, TemplateOptions, template_input
from .parsing.formats import format_of

if TYPE_CHECKING:
    from glmserve.engine.engine import Engine
    from glmserve.store.tokenizer import TokenizerBundle

WHILE_DRAINING = frozenset({"/livez", "/readyz", "/health", "/version", "/status", "/metrics"})
"""Answered while running streams end; everything else is refused."""


@dataclass(frozen=True)
class ServerSettings:
    """The profile's [server] section, and how long a step may take before the engine counts as stuck."""

    host: str = "127.0.0.1"
    port: int = 8000
    api_key_file: str = ""
    max_body_bytes: int = 1_048_576
    keep_alive_s: float = 10.0
    drain_s: float = 30.0
    stuck_s: float = 60.0


@dataclass
class Serving:
    """What the routes serve. The model's part is empty while it loads; `open` fills it."""

    settings: ServerSettings = field(default_factory=ServerSettings)
    licenses: status.Licenses | None = None
    engine: Engine | None = None
    draining: bool = False

    def open(self, engine: Engine, tokenizer: TokenizerBundle, name: str) -> None:
        """Start to serve a started engine under `name` and "default"."""
        self.tokenizer = tokenizer
        self.name = name
        self.names = frozenset({name, "default"})
        self.template = ChatTemplate(tokenizer.chat_template, tokenizer.bos_token, tokenizer.eos_token)
        self.format = format_of(tokenizer.tokenizer)
        self.token_text = tokenize.TokenText(tokenizer.tokenizer)
        self.engine = engine

    def template_input(self, messages: Sequence[Message], body: TemplateOptions) -> TemplateInput:
        """What the template is given for a request. Raises RequestError that names what this model cannot do."""
        return template_input(messages, body, self.template, self.format)

    def is_ready(self) -> bool:
        return health.unready_reason(self) is None

    def require_engine(self) -> Engine:
        """Raises UnavailableError while the model is being loaded."""
        if self.engine is None:
            raise UnavailableError("The server is not ready: the model is being loaded. Try again later.")
        return self.engine


class Gate:
    """Answers 503 for what cannot be served now: all but /livez while loading, new requests while draining."""

    def __init__(self, app: ASGIApp, serving: Serving) -> None:
        self._app = app
        self._serving = serving

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = scope["path"]
            if self._serving.draining and path not in WHILE_DRAINING:
                closing = errors.answer_to(UnavailableError("The server is shutting down. Try again later."))
                closing.headers["Connection"] = "close"
                await closing(scope, receive, send)
                return
            if self._serving.engine is None and path != "/livez":
                loading = UnavailableError("The server is not ready: the model is being loaded. Try again later.")
                await errors.answer_to(loading)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def create_app(serving: Serving, keys: Sequence[bytes] | None = None) -> FastAPI:
    """The application. `keys`: digests of the API keys; None reads settings.api_key_file.

    Raises ConfigError when the key file is unusable.
    """
    if keys is None:
        keys = read_keys(Path(serving.settings.api_key_file)) if serving.settings.api_key_file else ()
    app = FastAPI(
        title="glmserve",
        version=version("glmserve"),
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.serving = serving
    app.state.metrics = Metrics(serving)
    errors.install(app)
    routers: tuple[APIRouter, ...] = (
        chat.router,
        completions.router,
        models.router,
        tokenize.router,
        health.router,
        status.router,
        metrics.router,
    )
    for router in routers:
        app.include_router(router)
    app.add_middleware(Gate, serving=serving)
    app.add_middleware(AuthMiddleware, keys=keys)
    app.add_middleware(CountingMiddleware, metrics=app.state.metrics)
    _describe_truthfully(app)
    return app


def _describe_truthfully(app: FastAPI) -> None:
    """FastAPI declares 422 for every route with a body; here such a request gets 400."""
    describe = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = describe()
            for path in schema["paths"].values():
                for operation in path.values():
                    operation["responses"].pop("422", None)
            for unused in ("HTTPValidationError", "ValidationError"):
                schema.get("components", {}).get("schemas", {}).pop(unused, None)
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
