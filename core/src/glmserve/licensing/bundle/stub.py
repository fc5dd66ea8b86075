"""Fetch stubs: what a bundle holds in place of a component that it may not carry.

A stub names the component, its licence and its publisher's place, and pins what a user will fetch from there. It is
made of the manifest's statements alone: no byte of the component, and no address that carries a credential.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from glmserve.api.components import ComponentId, ComponentKind, FileEntry, Origin, Sha256
from glmserve.api.errors import GlmserveError, IntegrityError

from ..pins import unpinned
from ..report import Finding, Reason, Row

SCHEMA = "glmserve.fetch-stub/1"
MAX_STUB_BYTES = 16 << 20


def address_fault(url: str) -> str:
    """Why `url` cannot be passed on, as a phrase; "" when it can. Queries and user names are where credentials hide."""
    try:
        parts = urlsplit(url)
        host, named = parts.hostname, parts.username is not None or parts.password is not None
    except ValueError:
        return "is not an address"
    if parts.scheme not in ("http", "https") or not host or not url.isascii() or not url.isprintable() or " " in url:
        return "is not a plain http or https address"
    if named:
        return "has a user name or a password in it"
    if "?" in url or "#" in url:
        return "has a query or a fragment, where a token could stand"
    return ""


def _plain(url: str) -> str:
    if fault := address_fault(url):
        raise ValueError(f"it {fault}")
    return url


Line = Annotated[str, Field(min_length=1, max_length=2048)]
Address = Annotated[Line, AfterValidator(_plain)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class StubText(_Part):
    id: Line
    """Of the licence."""
    sha256: Sha256 | None
    """Of its normalised text; None while no person has confirmed the text."""


class StubLicense(_Part):
    expression: Line
    url: Address
    texts: tuple[StubText, ...] = Field(strict=False)


class StubOrigin(_Part):
    type: Literal["hf", "wheel", "git", "oci"]
    url: Address
    revision: Line
    publisher: Annotated[str, Field(max_length=2048)]

    @model_validator(mode="after")
    def _cannot_move(self) -> StubOrigin:
        if why := unpinned(Origin(type=self.type, url=self.url, revision=self.revision)):
            raise ValueError(why)
        return self


class FetchStub(_Part):
    """The content of stubs/ID.fetch.json."""

    schema_: Literal["glmserve.fetch-stub/1"] = Field(alias="schema")
    id: ComponentId
    name: Line
    kind: ComponentKind
    license: StubLicense
    origin: StubOrigin
    files: tuple[FileEntry, ...] = Field(strict=False)
    """Those whose digests are known; the revision pins the others."""
    reason: Annotated[Reason, Field(strict=False)] | None
    """Why its bytes are not here; None when the user fetches it anyway and nothing forbids more."""
    message: Annotated[str, Field(max_length=2048)]
    accept_required: bool
    """The user has to accept the licence before a byte is fetched."""
    attribution: tuple[Line, ...] = Field(strict=False)

    def serialise(self) -> bytes:
        """The one spelling of this stub."""
        value = self.model_dump(mode="json", by_alias=True)
        return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode("ascii")


def stub_path(component_id: str) -> str:
    """Where the stub of a component lies in a bundle."""
    return f"stubs/{component_id}.fetch.json"


def not_fetchable(row: Row) -> str:
    """Why no stub can stand for this component, as a clause; "" when one can."""
    origin = row.component.manifest.origin
    if origin is None or origin.type == "file" or not origin.url:
        return "nobody publishes it where a user could fetch it"
    return unpinned(origin) or ""


def make_stub(row: Row, reason: Finding | None, texts: Mapping[str, str | None]) -> FetchStub:
    """The stub of a component. `texts`: licence id -> sha256 of its normalised text, None while unconfirmed.

    Raises GlmserveError for a component that cannot be fetched, and for an address that could carry a credential.
    """
    manifest = row.component.manifest
    if why := not_fetchable(row):
        raise GlmserveError(
            f"There can be no stub for {manifest.id}, because {why}; pin it to a revision or leave it out."
        )
    origin = manifest.origin
    assert origin is not None
    for url in (origin.url, manifest.license.declared_at):
        if "://" in url and (fault := address_fault(url)):
            # The address itself is not shown: it may hold a secret.
            raise GlmserveError(f"There can be no stub for {manifest.id}, because an address in its manifest {fault}.")
    try:
        return FetchStub.model_validate(
            {
                "schema": SCHEMA,
                "id": manifest.id,
                "name": manifest.name,
                "kind": manifest.kind,
                "license": {
                    "expression": row.declared,
                    "url": _license_url(row, texts),
                    "texts": tuple({"id": id, "sha256": texts[id]} for id in sorted(texts)),
                },
                "origin": origin.model_dump(),
                "files": tuple(sorted((f.model_dump() for f in manifest.files), key=lambda f: str(f["path"]))),
                "reason": reason and reason.code,
                "message": reason.message if reason else "",
                "accept_required": manifest.policy.accept_before_fetch,
                "attribution": manifest.attribution.copyright,
            }
        )
    except ValidationError as error:
        raise GlmserveError(f"There can be no stub for {manifest.id}: {_first(error)}; correct its manifest.") from None


def read_stub(data: bytes, where: str) -> FetchStub:
    """Read a stub. `where` names it in errors. Raises IntegrityError for anything but what `serialise` writes."""
    if len(data) > MAX_STUB_BYTES:
        raise IntegrityError(f"{where}: a fetch stub has at most {MAX_STUB_BYTES} bytes.")
    try:
        stub = FetchStub.model_validate(json.loads(data.decode("ascii")))
    except ValidationError as error:
        raise IntegrityError(f"{where} is no fetch stub: {_first(error)}.") from None
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"{where} is no fetch stub: {str(error)[:120]}.") from None
    # Keys that are there twice, numbers spelt another way: whatever one reader could take otherwise than another.
    if stub.serialise() != data:
        raise IntegrityError(f"{where} is not written as glmserve writes a fetch stub.")
    return stub


def _license_url(row: Row, texts: Mapping[str, str | None]) -> str:
    declared_at = row.component.manifest.license.declared_at
    if not address_fault(declared_at):
        return declared_at
    listed = [id for id in sorted(texts) if not id.casefold().startswith("licenseref-")]
    if len(texts) == 1 and listed:
        return f"https://spdx.org/licenses/{listed[0]}.html"
    origin = row.component.manifest.origin
    return origin.url if origin else ""


def _first(error: ValidationError) -> str:
    first: Any = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"]) or "the stub"
    return f"{key}: {first['msg'][:1].lower()}{first['msg'][1:]}"
