"""Every refusal on the wire: one envelope, {"error": {message, type, param, code}}, as OpenAI's clients expect it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from glmserve.api import GlmserveError, QueueFullError, RequestError, UnavailableError

log = logging.getLogger("glmserve.server")

TYPES: Mapping[int, str] = {
    401: "authentication_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}
"""HTTP status -> error type; other 4xx are invalid_request_error, other 5xx server_error."""


class ErrorBody(BaseModel):
    message: str = Field(description="One sentence: what, why, and what to do instead.")
    type: str
    param: str | None = Field(description="The request's field that is wrong.")
    code: str | None = Field(description="A stable name of the refusal, for programs.")


class ErrorEnvelope(BaseModel):
    """What every answer but a success looks like."""

    error: ErrorBody


class HttpError(HTTPException):
    """A refusal below the level of requests: the body, the key, the path."""

    def __init__(
        self, status: int, message: str, *, code: str, param: str | None = None, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(status, message, headers)
        self.code = code
        self.param = param


def declared(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route, so that its OpenAPI description tells which errors it gives."""
    texts = {
        400: "The request is wrong; the message says what.",
        401: "No valid API key.",
        404: "No such model.",
        413: "The body is too large.",
        415: "The body is not JSON.",
        429: "Too many requests wait; Retry-After says when to come back.",
        500: "The model failed.",
        503: "The model is loading, stopping or broken.",
    }
    return {status: {"model": ErrorEnvelope, "description": texts[status]} for status in statuses}


def envelope(
    status: int, message: str, *, code: str | None = None, param: str | None = None
) -> dict[str, dict[str, str | None]]:
    """The error object, for an HTTP answer or for a stream that has begun."""
    kind = TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def answer(
    status: int,
    message: str,
    *,
    code: str | None = None,
    param: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    return JSONResponse(envelope(status, message, code=code, param=param), status, headers)


def answer_to(error: GlmserveError) -> JSONResponse:
    """The answer to an expected failure."""
    retry = isinstance(error, QueueFullError | UnavailableError)
    headers = {"Retry-After": str(error.retry_after_s)} if retry else None  # type: ignore[attr-defined]
    param = error.param if isinstance(error, RequestError) else None
    return answer(error.http_status, str(error), code=error.code, param=param, headers=headers)


def field_path(location: Sequence[int | str]) -> str:
    """`messages[0].content` from a pydantic location, without the names of union branches."""
    path = ""
    for part in location[1:]:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier() and part not in ("str", "int", "bool", "float", "dict", "list"):
            path += f".{part}" if path else part
    return path


def install(app: FastAPI) -> None:
    """Let `app` answer every failure in the envelope."""

    @app.exception_handler(GlmserveError)
    async def expected(request: Request, error: GlmserveError) -> JSONResponse:
        return answer_to(error)

    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        path = field_path(first["loc"])
        message = str(first["msg"]).rstrip(".")
        if not path:
            return answer(400, "The body must be a JSON object.", code="invalid_body")
        if first["type"] == "missing":
            return answer(400, f"The field {path!r} is required.", code="missing_field", param=path)
        if first["type"] == "sentence":
            return answer(400, f"{message}.", code="invalid_value", param=path)
        return answer(400, f"{path!r} is wrong: {message[:1].lower()}{message[1:]}.", code="invalid_value", param=path)

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> JSONResponse:
        if isinstance(error, HttpError):
            return answer(
                error.status_code, str(error.detail), code=error.code, param=error.param, headers=error.headers
            )
        messages = {
            404: ("There is no such route.", "not_found"),
            405: (f"This route does not answer {request.method}.", "method_not_allowed"),
        }
        message, code = messages.get(error.status_code, (str(error.detail), "invalid_request"))
        return answer(error.status_code, message, code=code, headers=error.headers)

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> JSONResponse:
        return answer(500, "The server failed on this request; its log says why.", code="internal_error")
