"""What a request may weigh: its body, read with a limit and parsed with care, and its share of the context."""

from __future__ import annotations

import asyncio
import email.message
import json
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect

from glmserve.api import RequestError

from .errors import HttpError

MAX_CHOICES = 8
"""Of `n`."""
MAX_SEQUENCES = 32
"""Of one request: prompts times `n`."""
MAX_STOPS = 4
MAX_STOP_LENGTH = 512
"""Characters of one stop string; every token is searched for it."""
MAX_STOP_IDS = 64
MAX_BIASES = 1024
MAX_TOOLS = 128
LINGER_BYTES = 16 * 2**20
"""A body that is too large is still read up to here, and dropped, because a client that is cut off while it sends
sees a broken connection instead of the answer."""
LINGER_S = 5.0


class JsonRequest(Request):
    """A request whose body is bounded and strictly JSON: no NaN, no half surrogates, no depth that breaks parsing."""

    async def body(self) -> bytes:
        if not hasattr(self, "_body"):
            self._body = await self._read(self.app.state.serving.settings.max_body_bytes)
            self._check_type()
        return self._body

    async def json(self) -> Any:
        return parse_json(await self.body())

    async def _read(self, limit: int) -> bytes:
        declared = self.headers.get("content-length", "")
        if declared.isascii() and declared.isdigit() and int(declared) > max(limit, LINGER_BYTES):
            _too_large(limit)
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(None) as deadline:
                async for part in self.stream():
                    size += len(part)
                    if size <= limit:
                        parts.append(part)
                        continue
                    parts.clear()
                    if deadline.when() is None:
                        deadline.reschedule(asyncio.get_running_loop().time() + LINGER_S)
                    if size > LINGER_BYTES:
                        break
        except TimeoutError:
            pass
        except ClientDisconnect:
            raise HttpError(400, "The client left before its body was complete.", code="incomplete_body") from None
        if size > limit:
            _too_large(limit)
        return b"".join(parts)

    def _check_type(self) -> None:
        """A web page may send any other type, or none, to a server on its reader's machine without asking it first."""
        header = email.message.Message()
        header["content-type"] = self.headers.get("content-type", "")
        if header.get_content_maintype() != "application" or not (
            header.get_content_subtype() == "json" or header.get_content_subtype().endswith("+json")
        ):
            raise HttpError(415, "The body must be JSON: send Content-Type: application/json.", code="not_json")


class JsonRoute(APIRoute):
    """A route that reads its body as `JsonRequest` does."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def bounded(request: Request) -> Response:
            return await handle(JsonRequest(request.scope, request.receive))

        return bounded


def parse_json(body: bytes) -> Any:
    """The value of a JSON text. Raises HttpError 400 that says what is wrong and where."""
    try:
        value = json.loads(body.decode("utf-8"), parse_constant=_no_constant)
        if b"\\u" in body:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except json.JSONDecodeError as error:
        raise _bad_json(f"{error.msg} at line {error.lineno}, column {error.colno}") from None
    except UnicodeDecodeError as error:
        raise _bad_json(f"byte {error.start} is not UTF-8") from None
    except UnicodeEncodeError:
        raise _bad_json("a string holds half of a surrogate pair") from None
    except RecursionError:
        raise _bad_json("it is nested too deeply") from None
    except ValueError as error:
        raise _bad_json("a number has too many digits" if "digits" in str(error) else str(error)) from None
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _bad_json(why: str) -> HttpError:
    return HttpError(400, f"The body is not valid JSON: {why}.", code="invalid_json")


def _too_large(limit: int) -> NoReturn:
    raise HttpError(
        413,
        f"The body is larger than {limit} bytes; send less, or raise server.max_body_bytes.",
        code="body_too_large",
        headers={"Connection": "close"},
    )


def completion_room(prompt_tokens: int, asked: int | None, default: int | None, window: int, param: str) -> int:
    """Tokens that may be generated. An explicit `asked` is kept or refused, a default is cut to what fits.

    Raises RequestError with code context_length_exceeded.
    """
    room = window - prompt_tokens
    if asked is None and room >= 1:
        return room if default is None else min(default, room)
    if asked is not None and asked <= room:
        return asked
    wanted = f"{prompt_tokens} in the prompt"
    if asked is not None:
        wanted += f", {asked} in the completion"
    raise RequestError(
        f"This model's maximum context length is {window} tokens. However, you requested "
        f"{prompt_tokens + (asked or 1)} tokens ({wanted}). Please shorten the prompt or the completion.",
        param=param,
        code="context_length_exceeded",
    )
