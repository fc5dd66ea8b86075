"""The refusals a user can meet. Each is one sentence: what, why, and what to do instead.

`exit_code` is what a command returns, `http_status` and `code` what a server answers.
"""

from __future__ import annotations

from collections.abc import Sequence


class GlmserveError(Exception):
    """Base of every expected failure. Its message is shown to the user as it stands, never with a traceback."""

    exit_code = 1
    http_status = 500
    code = "internal_error"


class ConfigError(GlmserveError):
    """A profile, setting, flag or environment variable is wrong."""

    exit_code = 2


class PluginError(ConfigError):
    """A plugin is broken, misspelt, duplicated or missing."""


class SourceError(GlmserveError):
    """A model source cannot be resolved or fetched (network, missing file, unpinned revision, full disk)."""

    exit_code = 3


class IntegrityError(SourceError):
    """Bytes are not what their digest or their own format says they should be."""


class LicenseError(GlmserveError):
    """A licence, a missing fact or a missing acceptance does not let this happen."""


class CheckpointError(GlmserveError):
    """A checkpoint is readable but does not fit: missing or unexpected tensors, unsupported type or family."""

    exit_code = 3


class RequestError(GlmserveError):
    """A request is refused; nothing was generated."""

    http_status = 400
    code = "invalid_request"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        if code is not None:
            self.code = code


class QueueFullError(GlmserveError):
    """Too many requests wait already; try again after `retry_after_s` seconds."""

    http_status = 429
    code = "queue_full"

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class UnavailableError(GlmserveError):
    """The engine is loading, draining or dead; try again after `retry_after_s` seconds."""

    http_status = 503
    code = "unavailable"

    def __init__(self, message: str, *, retry_after_s: int = 5) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RankError(UnavailableError):
    """Ranks of a group are lost, late or out of step; `ranks` are theirs. The group cannot go on."""

    def __init__(self, message: str, ranks: Sequence[int]) -> None:
        super().__init__(message)
        self.ranks = tuple(ranks)
