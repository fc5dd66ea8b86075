"""Clarifications: a person read the texts of a distribution, and says what they are, pinned to their digests."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

import glmserve_licenses
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from glmserve.api import ConfigError

from ..expressions import MalformedExpression, parse
from ..policy import Clarification
from ..report import Finding, LicenseText, Reason, Verdict
from .distinfo import normalised


@dataclass(frozen=True)
class Clarified:
    """What clarifications say of one distribution."""

    expression: str = ""
    """Canonical; "" when none holds."""
    findings: tuple[Finding, ...] = ()
    """CLARIFY_STALE, when one is about this version and its texts have changed."""


class _Shipped(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    clarify: Annotated[tuple[Clarification, ...], Field(strict=False)]


class Clarifications:
    """The user's clarifications by distribution, checked."""

    def __init__(self, entries: Sequence[Clarification]) -> None:
        """Raises ConfigError for an expression, a version or a digest that cannot be meant."""
        self._by_name: dict[str, list[tuple[SpecifierSet, str, Clarification]]] = {}
        for entry in entries:
            where = f"The clarification of {entry.dist}"
            try:
                expression = str(parse(entry.expression))
                versions = SpecifierSet(entry.version)
            except MalformedExpression as error:
                raise ConfigError(f"{where}: {entry.expression!r} is no SPDX expression: {error}.") from None
            except InvalidSpecifier:
                raise ConfigError(f'{where}: {entry.version!r} is no version specifier such as "==1.2".') from None
            for text in entry.texts:
                if text.sha256 is None:
                    raise ConfigError(f"{where}: give the sha256 of {text.path}, so that a changed text voids it.")
            self._by_name.setdefault(normalised(entry.dist), []).append((versions, expression, entry))

    def find(self, name: str, version: str, texts: Sequence[LicenseText]) -> Clarified:
        """What holds for a distribution whose texts were found at paths that end as the clarification's do."""
        stale: list[Clarification] = []
        for versions, expression, entry in self._by_name.get(normalised(name), ()):
            if entry.version and not _contains(versions, version):
                continue
            if all(_holds(text.path, text.sha256, texts) for text in entry.texts):
                return Clarified(expression)
            stale.append(entry)
        return Clarified("", tuple(map(_stale, stale[:1])))


@lru_cache(maxsize=1)
def shipped_clarifications() -> tuple[Clarification, ...]:
    """Those that this project reviewed, for distributions it depends on. Raises ConfigError for a damaged file."""
    path = glmserve_licenses.ROOT / "clarifications.toml"
    try:
        return _Shipped.model_validate(tomllib.loads(path.read_text("utf-8"))).clarify
    except (OSError, ValidationError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(f"{path.name} of glmserve-licenses cannot be read, so install it anew: {reason}.") from None


def _contains(versions: SpecifierSet, version: str) -> bool:
    try:
        return versions.contains(version, prereleases=True)
    except InvalidVersion:
        return False


def _holds(path: str, sha256: str | None, texts: Sequence[LicenseText]) -> bool:
    """Whether the text is there, as License-File names it or by its path in the installation, and says the same."""
    return any(text.sha256 == sha256 and _is(path, text.path) for text in texts)


def _is(path: str, found: str) -> bool:
    inner = found.partition("/")[2]  # without NAME-VERSION.dist-info
    return path in (found, inner, inner.removeprefix("licenses/"))


def _stale(entry: Clarification) -> Finding:
    files = ", ".join(text.path for text in entry.texts)
    message = f"the clarification as {entry.expression} is void: {files} is not the text that was read"
    ways = ("read the text again and record its new digest under [[licenses.clarify]]",)
    return Finding(Reason.CLARIFY_STALE, Verdict.UNKNOWN, message, remedies=ways)
