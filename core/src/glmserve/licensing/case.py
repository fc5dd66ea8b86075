"""What holds for a whole audit, whichever component is judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING

from .acceptance import Ledger
from .policy import Document, LicensesSection, OrganisationPolicy
from .report import Component

if TYPE_CHECKING:
    from .catalogue import Catalogue


@dataclass(frozen=True)
class Case:
    """What holds for a whole audit."""

    catalogue: Catalogue
    section: LicensesSection
    known: Mapping[str, Component]
    """By id: the audited components, and those that are only ancestors."""
    verified: Callable[[Document], bool]
    """Whether a document is here and has its digest."""
    today: date
    policies: Sequence[OrganisationPolicy] = ()
    """All of them have to hold."""
    ledger: Ledger = field(default_factory=Ledger)
    drafters: tuple[str, ...] = ()
    """Ways out of a drafter's terms: other drafters, as the command line names them."""
    commercial: bool = False
    service: bool = False
    starting: bool = False
    """The model is about to be fetched or loaded: components that ask for it need an acceptance."""
    lifted: set[int] = field(default_factory=set)
    """id() of every exception and grant that lifted something."""
