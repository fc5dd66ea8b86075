"""API keys: read from a file, kept as digests, compared in constant time, asked for everywhere but on the open list."""

from __future__ import annotations

import hashlib
import hmac
import stat
from collections.abc import Sequence
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from glmserve.api import ConfigError

from .errors import answer

OPEN_PATHS = frozenset({"/livez", "/readyz", "/health", "/version"})
"""Answered without a key."""


def read_keys(path: Path) -> tuple[bytes, ...]:
    """sha256 digests of the keys in `path`: one key a line; empty lines and lines that start with # are skipped.

    Raises ConfigError when the file cannot be read, holds no key, or can be read by other users.
    """
    try:
        mode = path.stat().st_mode
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"The API key file {path} cannot be read: {reason}.") from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(f"The API key file {path} is open to other users; run: chmod 600 {path}")
    keys = [line.strip() for line in lines]
    digests = tuple(_digest(key.encode()) for key in keys if key and not key.startswith("#"))
    if not digests:
        raise ConfigError(f"The API key file {path} holds no key; write one key on a line of its own.")
    return digests


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


class AuthMiddleware:
    """Answers 401 unless a request carries a known key. The key's digest becomes scope["glmserve.salt"], so that one
    client cannot learn from the prefix cache's timing what another has asked."""

    def __init__(self, app: ASGIApp, keys: Sequence[bytes]) -> None:
        self._app = app
        self._keys = tuple(keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._keys or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        known = self._known(Headers(scope=scope))
        if known is None:
            refusal = answer(
                401,
                "A valid API key is needed: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'.",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
            await refusal(scope, receive, send)
            return
        scope["glmserve.salt"] = known
        await self._app(scope, receive, send)

    def _known(self, headers: Headers) -> bytes | None:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        digest = _digest(given.encode("latin-1"))  # as the header carried it
        # Every key is compared, so that the time does not tell which one came near.
        matches = [key for key in self._keys if hmac.compare_digest(key, digest)]
        return matches[0] if matches else None
