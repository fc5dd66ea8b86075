"""What the user says: facts, the organisation's policy, clarifications, exceptions and grants.

It is the section [licenses] of a profile, or the same tables at the top level of a file for --policy. Unknown keys are
errors, because a typo must not disable a rule.
"""

from __future__ import annotations

from datetime import date
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from glmserve.api.components import ComponentId, RelativePath, Sha256, TextFile

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

    Besides `purpose`, the names are those that gates of the catalogue ask for; `check_names` in
    `glmserve.licensing.catalogue` refuses others.
    """

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)
    __pydantic_extra__: dict[str, bool | Document]

    purpose: Literal["noncommercial", "commercial"] | None = None

    def get(self, name: str) -> bool | Document | None:
        return (self.__pydantic_extra__ or {}).get(name)

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

    facts: Facts = Facts()
    policy: OrganisationPolicy = OrganisationPolicy()
    clarify: tuple[Clarification, ...] = Field((), strict=False)
    exceptions: tuple[Exception_, ...] = Field((), strict=False)
    grants: tuple[Grant, ...] = Field((), strict=False)
    catalogue: tuple[RelativePath, ...] = Field((), strict=False)
    """Files with terms of the user's own, relative to the file that names them; marked `local` in every report."""
    service: bool = False
    """Third parties reach the model over an API."""
