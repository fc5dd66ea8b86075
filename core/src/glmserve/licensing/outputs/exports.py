"""What the documents that are drawn from a report have in common: order, names, addresses and bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote, unquote, urlsplit
from uuid import NAMESPACE_URL, UUID, uuid5

from glmserve.api.components import Origin
from glmserve.api.errors import ConfigError, GlmserveError

from ..expressions import ABSENT, Expression, License, MalformedExpression, parse, same
from ..report import Component, Report, Row

TextOf = Callable[[str], str | None]
"""The text of a licence by its identifier; None when the project does not carry it."""

# An address that any reader of the documents can follow, and nothing of which has to be escaped.
_WEB = re.compile(
    r"https?://(?:[a-z0-9](?:[a-z0-9-]*[a-z0-9])?\.)+[a-z]{2,}(?::[0-9]{1,5})?"
    r"(?:/(?:[\w.~!$&'()*+,;=:@/-]|%[0-9a-f]{2})*)?(?:\?(?:[\w.~!$&'()*+,;=:@/?-]|%[0-9a-f]{2})*)?",
    re.IGNORECASE | re.ASCII,
)
_DISTRIBUTION = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?", re.IGNORECASE | re.ASCII)
# What hubs allow in the name of an owner or a repository.
_REPOSITORY = re.compile(r"(?!\.{1,2}$)[a-z0-9._-]+", re.IGNORECASE | re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def ordered(report: Report) -> tuple[Row, ...]:
    """The rows in the order of a report. Raises GlmserveError when two components share an id."""
    rows = sorted(
        report.rows, key=lambda row: (row.component.environment, row.component.manifest.kind, row.component.id)
    )
    ids = [row.component.id for row in rows]
    twice = sorted({name for name in ids if ids.count(name) > 1}) if len(set(ids)) < len(ids) else []
    if twice:
        raise GlmserveError(
            f"Two components of the profile {report.profile} are called {twice[0]}, so that no document can tell them "
            "apart; give one of them another id."
        )
    return tuple(rows)


def left_out(report: Report, stubs: Collection[str] | None = None) -> frozenset[str]:
    """Ids of the components whose bytes are not part of what is shared.

    `stubs` when a caller has decided; otherwise what its user fetches and no share in the report counts.
    """
    if stubs is not None:
        return frozenset(stubs)
    return frozenset(
        row.component.id
        for row in report.rows
        if row.component.manifest.delivery == "fetch"
        and not any(ruling.counted for use, ruling in row.rulings.items() if use.shares)
    )


def declared_tree(row: Row) -> Expression | None:
    """None when nothing is declared, or what is declared is no expression."""
    if row.declared.casefold() in ABSENT:
        return None
    try:
        return parse(row.declared)
    except MalformedExpression:
        return None


def concluded_tree(row: Row) -> Expression | None:
    """None when nothing is concluded. Raises GlmserveError for a conclusion that is no expression: it is this program's
    own, and no document may pass it on."""
    try:
        return parse(row.concluded) if row.concluded else None
    except MalformedExpression as error:
        raise GlmserveError(
            f"The licence concluded for {row.component.id} is no SPDX expression ({error}), so that no document can "
            "carry it; please report this."
        ) from None


def reference_text(row: Row, identifier: str, text_of: TextOf) -> str | None:
    """The text of the LicenseRef `identifier`, from the catalogue or from beside the component."""
    if text := text_of(identifier):
        return text
    found = [t for t in row.component.texts if t.text.strip()]
    tree = declared_tree(row)
    if tree is None or not same(tree, License(identifier)):
        # Several licences: only a file that is named for this one, as in LICENSES/<id>.txt, is known to be its text.
        found = [t for t in found if PurePosixPath(t.path).stem.casefold() == identifier.casefold()]
    return "\n".join(t.text for t in found) or None


def web_url(text: str) -> str | None:
    """`text` when it is a plain http or https address."""
    return text if _WEB.fullmatch(text) else None


def version_of(component: Component) -> str:
    manifest = component.manifest
    return one_version(manifest.version) or one_version(manifest.origin.revision if manifest.origin else "")


def one_version(text: str) -> str:
    return text if text.isprintable() and text == text.strip() and len(text) <= 256 else ""


def git_location(origin: Origin) -> str | None:
    """The address of the publisher's copy at its commit, as `git+https://...@commit`."""
    url = web_url(origin.url)
    if origin.type not in ("hf", "git") or not url or "?" in url or not _COMMIT.fullmatch(origin.revision):
        return None
    return f"git+{url.rstrip('/')}@{origin.revision}"


def timestamp(epoch: int) -> str:
    """`epoch` in seconds (SOURCE_DATE_EPOCH) as ISO 8601 in UTC. Raises ConfigError for one that no calendar has."""
    try:
        return datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        raise ConfigError(
            f"SOURCE_DATE_EPOCH is {epoch}, which is no date; give the seconds since 1970-01-01."
        ) from None


def package_url(component: Component) -> str | None:
    """The purl of a component that lies in a place for which the purl specification has a type."""
    manifest = component.manifest
    origin = manifest.origin
    if origin is None or origin.type == "wheel":
        name = component.distribution or (manifest.name if origin else "")
        if not _DISTRIBUTION.fullmatch(name):
            return None
        version = one_version(origin.revision if origin else "") or one_version(manifest.version)
        return _purl("pypi", [name.lower().replace("_", "-")], version)
    return _repository_url(origin)


def _repository_url(origin: Origin) -> str | None:
    if origin.type == "oci":
        # With neither a scheme before the name nor a tag after it: the digest says which image it is.
        image = re.sub(r"^[a-z]+://|:[\w.-]+$", "", origin.url)
        if not re.fullmatch(r"[a-z0-9][a-z0-9.:/_-]*[a-z0-9]", image) or not _DIGEST.fullmatch(origin.revision):
            return None
        return f"{_purl('oci', [image.split('/')[-1]], origin.revision)}?repository_url={image}"
    if not web_url(origin.url):
        return None
    url = urlsplit(origin.url)
    parts = [unquote(part) for part in url.path.removesuffix(".git").split("/") if part]
    if not all(_REPOSITORY.fullmatch(part) for part in parts):
        return None
    if origin.type == "hf" and 1 <= len(parts) <= 2:
        hub = "" if url.netloc == "huggingface.co" else f"?repository_url={url.scheme}://{url.netloc}"
        return f"{_purl('huggingface', parts, one_version(origin.revision))}{hub}"
    if origin.type == "git" and url.netloc == "github.com" and len(parts) == 2:
        return _purl("github", [part.lower() for part in parts], one_version(origin.revision))
    return None


def _purl(kind: str, path: list[str], version: str) -> str:
    purl = f"pkg:{kind}/{'/'.join(quote(part, safe=':') for part in path)}"
    return f"{purl}@{quote(version, safe=':')}" if version else purl


def serialise(document: dict[str, Any]) -> str:
    """The one spelling of a JSON document: sorted, indented, ASCII, so that equal contents are equal bytes."""
    return json.dumps(document, sort_keys=True, indent=2, ensure_ascii=True, allow_nan=False) + "\n"


def content_uuid(document: dict[str, Any]) -> UUID:
    """A name that two documents share only when they say the same."""
    return uuid5(NAMESPACE_URL, serialise(document))
