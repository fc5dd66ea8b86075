"""Rows of the catalogue: their types, and files of them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from glmserve.api import ConfigError
from glmserve.api.components import RelativePath, Sha256

MAX_FILE_BYTES = 1 << 20

Permission = Literal["yes", "no", "unknown"]
PermissionName = Literal[
    "use", "commercial", "hosted_service", "redistribute", "modify", "share_modified", "sublicense", "patent_grant"
]
Obligation = Literal[
    "license_text",
    "copyright_notice",
    "notice_file",
    "state_changes",
    "attribution_link",
    "source_offer",
    "same_licence",
    "network_source",
    "accept_required",
]
Category = Literal[
    "permissive", "weak-copyleft", "strong-copyleft", "network-copyleft", "source-available", "proprietary"
]
GateKind = Literal[
    "revenue",
    "mau",
    "business_category",
    "party_exclusion",
    "territory",
    "aup",
    "output_use",
    "display_brand",
    "name_prefix",
    "registration",
]
Text = Annotated[str, Field(min_length=1)]
FactName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]

CLAUSES = frozenset({*get_args(PermissionName), *get_args(Obligation), "termination"})


def _clauses(clauses: Mapping[str, str]) -> Mapping[str, str]:
    wrong = sorted(clauses.keys() - CLAUSES)
    if wrong:
        raise ValueError(f"{wrong[0]!r} is no permission or obligation")
    return clauses


class _Row(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Gate(_Row):
    """A condition on commercial use that depends on who the user is."""

    kind: GateKind
    summary: Text
    """A clause that a sentence can begin with, without its full stop."""
    clause: str = ""
    facts: tuple[FactName, ...] = Field((), strict=False)
    """The gate closes when all of them are true; when there are none, a person has to read the clause."""
    lifted_by: FactName | Literal[""] = ""
    """The fact whose document opens a closed gate."""


class Terms(_Row):
    """One licence. A permission that its text does not settle is "unknown"."""

    id: Text
    """An SPDX identifier, such an identifier WITH an exception, or a LicenseRef."""
    name: Text
    category: Category
    summary: Text
    use: Permission = "unknown"
    commercial: Permission = "unknown"
    hosted_service: Permission = "unknown"
    redistribute: Permission = "unknown"
    modify: Permission = "unknown"
    share_modified: Permission = "unknown"
    sublicense: Permission = "unknown"
    patent_grant: Permission = "unknown"
    obligations: tuple[Obligation, ...] = Field(strict=False)
    clauses: Annotated[Mapping[str, Text], AfterValidator(_clauses)] = Field(default_factory=dict)
    """Where the text says so."""
    gates: tuple[Gate, ...] = Field((), strict=False)
    text: tuple[RelativePath, ...] = Field((), strict=False)
    """The files that make up the text, in order: in `texts` of glmserve-licenses, or beside the user's own file."""
    text_sha256: tuple[Sha256, ...] = Field((), strict=False)
    """Digests of known copies of the text, normalised; the first is that of `text`."""
    canonical_url: str = ""
    uncertain: tuple[Text, ...] = Field((), strict=False)
    reviewed_on: date
    reviewed_by: Text


class _File(_Row):
    schema_: Literal["glmserve.terms/1"] = Field(alias="schema")
    terms: tuple[Terms, ...] = Field(strict=False)


def parse_rows(path: Path) -> tuple[Terms, ...]:
    """The rows of a file. Raises ConfigError when it cannot be read or does not fit."""
    try:
        return _File.model_validate(tomllib.loads(read_file(path, path).decode("utf-8"))).terms
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"]) or "the file"
        raise ConfigError(f"{path}: {key}: {first['msg'][:1].lower()}{first['msg'][1:]}.") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: this is no file of licence terms: {error}.") from None


def read_file(path: Path, source: Path) -> bytes:
    """The bytes of a small file that `source` names. Raises ConfigError."""
    try:
        data = path.read_bytes()
    except ValueError:
        raise ConfigError(f"{source}: {path.name!r} is no name that a file can have.") from None
    except OSError as error:
        raise ConfigError(f"{source}: {path.name} cannot be read: {error.strerror or error}.") from None
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"{source}: {path.name} has more than {MAX_FILE_BYTES} bytes.")
    return data
