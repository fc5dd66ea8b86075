"""What the user says: facts, the organisation's policy, clarifications, exceptions and grants.

It is the section [licenses] of a profile, or the same tables at the top level of a file for --policy. Unknown keys are
errors, because a typo must not disable a rule.
"""

from __future__ import annotations

import stat
import tomllib
from datetime import date
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from glmserve.api import ConfigError
from glmserve.api.components import ComponentId, Sha256, TextFile

from .report import Use

Text = Annotated[str, Field(min_length=1)]
UseName = Annotated[Use, Field(strict=False)]
Day = Annotated[date, Field(strict=False)]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Document(_Table):
    """A paper on this machine, pinned by its digest. Paths are relative to the file that names them."""

    document: Text
    sha256: Sha256


class Facts(_Table):
    """What only the user knows. A fact that is not stated is undeclared, never false.

    Besides `purpose`, the names are those that gates of the catalogue ask for; `glmserve.licensing.audit.check_section`
    refuses others.
    """

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)
    __pydantic_extra__: dict[str, bool | Document]

    purpose: Literal["noncommercial", "commercial"] | None = None

    def get(self, name: str) -> bool | Document | None:
        return (self.__pydantic_extra__ or {}).get(name)

    def shown(self) -> dict[str, bool | str]:
        """All facts, for a record: of a document its digest."""
        shown: dict[str, bool | str] = {} if self.purpose is None else {"purpose": self.purpose}
        for name, value in (self.__pydantic_extra__ or {}).items():
            shown[name] = value.sha256 if isinstance(value, Document) else value
        return shown

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.__pydantic_extra__ or {})


class Allowed(_Table):
    allow: tuple[Text, ...] = Field(strict=False)


class OrganisationPolicy(_Table):
    """Only tightens. Entries are SPDX identifiers, LicenseRefs of the catalogue, or sets such as "@permissive"."""

    allow: tuple[Text, ...] | None = Field(None, strict=False)
    """None: no allow list. An empty list allows nothing."""
    deny: tuple[Text, ...] = Field((), strict=False)
    by_kind: dict[str, Allowed] = Field(default_factory=dict)
    """For components of a kind, a further list that has to hold as well."""


class Clarification(_Table):
    """A person read the texts of a distribution and says what they are; void when a text changes."""

    dist: Text
    version: str = ""
    """A version specifier such as "==1.2"; "" for any version with these texts."""
    expression: Text
    texts: tuple[TextFile, ...] = Field(min_length=1, strict=False)


class Exception_(_Table):
    """The organisation lets one component through where its own policy denies or the answer is unknown."""

    component: ComponentId
    uses: tuple[UseName, ...] = Field(min_length=1, strict=False)
    licenses: tuple[Text, ...] = Field(min_length=1, strict=False)
    reason: Text
    approved_by: Text
    expires: Day | None = None


class Grant(_Table):
    """A permission that the licensor gave to this user, outside the public licence."""

    component: ComponentId
    revisions: tuple[Text, ...] = Field(min_length=1, strict=False)
    uses: tuple[UseName, ...] = Field(min_length=1, strict=False)
    licensor: Text
    document: Text
    sha256: Sha256
    expires: Day | None = None
    transferable: bool = False


class LicensesSection(_Table):
    """Everything an audit wants to know from the user."""

    facts: Facts = Field(Facts(), description="What only you know: purpose, and the facts that gates ask for.")
    policy: OrganisationPolicy = Field(OrganisationPolicy(), description="Licences that your organisation lets in.")
    clarify: tuple[Clarification, ...] = Field(
        (), strict=False, description="What the licence texts of a distribution are."
    )
    exceptions: tuple[Exception_, ...] = Field((), strict=False, description="What your organisation lets through.")
    grants: tuple[Grant, ...] = Field((), strict=False, description="What a licensor permitted you in writing.")
    catalogue: tuple[Text, ...] = Field(
        (), strict=False, description="Files with terms of your own, marked as such in every report."
    )
    service: bool = Field(False, description="Third parties reach the model over an API.")


def load_policy(path: Path) -> LicensesSection:
    """Read a file for --policy, its documents made absolute. Raises ConfigError with the key that is wrong."""
    try:
        section = LicensesSection.model_validate(tomllib.loads(path.read_text("utf-8")))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{path}: {key}: {first['msg'][:1].lower()}{first['msg'][1:]}.") from None
    except (OSError, ValueError, RecursionError) as error:
        # A number of thousands of digits is a ValueError of its own, and no error of TOML.
        raise ConfigError(f"The policy {path} cannot be read: {error}.") from None
    return anchored(section, path.parent)


def writable_by_others(path: Path) -> bool:
    """Other users of this machine could change the policy."""
    return bool(stat.S_IMODE(path.stat().st_mode) & 0o002)


def anchored(section: LicensesSection, base: Path) -> LicensesSection:
    """The section with every path made absolute; relative ones are relative to `base`."""
    facts = {
        name: value.model_copy(update={"document": str(base / value.document)})
        for name in section.facts.names
        if isinstance(value := section.facts.get(name), Document)
    }
    grants = tuple(g.model_copy(update={"document": str(base / g.document)}) for g in section.grants)
    return section.model_copy(
        update={
            "facts": section.facts.model_copy(update=facts),
            "grants": grants,
            "catalogue": tuple(str(base / file) for file in section.catalogue),
        }
    )


def joined(first: LicensesSection, second: LicensesSection) -> LicensesSection:
    """Both sections; a fact of `second` replaces that of `first`. Their organisation policies stay apart: see audit."""
    said = {name: second.facts.get(name) for name in second.facts.names}
    if second.facts.purpose is not None:
        said["purpose"] = second.facts.purpose  # type: ignore[assignment]
    return first.model_copy(
        update={
            "facts": first.facts.model_copy(update=said),
            "clarify": (*first.clarify, *second.clarify),
            "exceptions": (*first.exceptions, *second.exceptions),
            "grants": (*first.grants, *second.grants),
            "catalogue": (*first.catalogue, *second.catalogue),
            "service": first.service or second.service,
        }
    )
