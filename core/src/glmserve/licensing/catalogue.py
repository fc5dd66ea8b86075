"""The reviewed catalogue: what each licence permits and asks for. Nothing else in the project decides that.

The rows lie in the distribution glmserve-licenses; users may add files with rows of their own, which every report marks
as local.
"""

from __future__ import annotations

import importlib
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import glmserve_licenses

from glmserve.api import ConfigError, IntegrityError
from glmserve.nearest import nearest

from .expressions import ADDITIONS, License, MalformedExpression, parse
from .report import LicenseText
from .rows import Gate as Gate
from .rows import Terms as Terms
from .rows import parse_rows, read_file
from .texts import digest, normalise

SETS = (
    "@permissive",
    "@weak-copyleft",
    "@strong-copyleft",
    "@network-copyleft",
    "@noncommercial",
    "@no-derivatives",
    "@gated",
)
"""What a policy may name instead of licences."""


@dataclass(frozen=True)
class _Entry:
    terms: Terms
    source: Path
    """The file with the row."""
    texts: Path
    """The directory with its texts."""


@dataclass(frozen=True)
class Catalogue:
    """All rows, by identifier. Make one with `load_catalogue`."""

    _entries: Mapping[str, _Entry]
    """By case-folded identifier."""
    aliases: Mapping[str, str]
    """From case-folded deprecated identifiers to identifiers of rows."""
    local: frozenset[str]
    """Identifiers of the user's own rows."""
    version: str = glmserve_licenses.__version__
    """Of glmserve-licenses."""

    @cached_property
    def rows(self) -> tuple[Terms, ...]:
        """By identifier."""
        return tuple(self._entries[key].terms for key in sorted(self._entries))

    @cached_property
    def facts(self) -> frozenset[str]:
        """Names that gates ask for as true or false."""
        return frozenset(name for row in self.rows for gate in row.gates for name in gate.facts)

    @cached_property
    def documents(self) -> frozenset[str]:
        """Names whose document lifts a gate."""
        return frozenset(gate.lifted_by for row in self.rows for gate in row.gates if gate.lifted_by)

    @cached_property
    def spdx_version(self) -> str:
        """Of the SPDX licence list that expressions are checked against; "" when `packaging` does not tell."""
        return str(getattr(_spdx(), "VERSION", ""))

    def find(self, license: License) -> Terms | None:
        """The row of a licence, or None: then nobody has said what it permits.

        An exception without a row of its own adds permissions that nobody has reviewed, so the row of the licence alone
        answers for it. A deprecated identifier has the row of its successor, and "X+" that of X.
        """
        entry = self._entry(license) or self._entry(License(license.id))
        return entry.terms if entry is not None else None

    def text(self, license: License) -> LicenseText | None:
        """The text as a recipient needs it; None where the catalogue has none, or not that of the exception.

        Raises IntegrityError when the installed file is not the one that was reviewed.
        """
        entry = self._entry(license)
        if entry is None or not entry.terms.text:
            return None
        parts = [normalise(read_file(entry.texts / name, entry.source)) for name in entry.terms.text]
        text = normalise("\n".join(parts))
        if digest(text) not in entry.terms.text_sha256:
            raise IntegrityError(
                f"The text of {entry.terms.id} is not the one on record in {entry.source}; reinstall glmserve-licenses"
                " or correct text_sha256."
            )
        return LicenseText("", digest(text), text)

    def text_of(self, identifier: str) -> str | None:
        """The text of an identifier such as "MIT" or "Apache-2.0 WITH LLVM-exception", or None."""
        license = _leaf(identifier)
        text = self.text(license) if license is not None else None
        return text.text if text is not None else None

    def matches(self, entry: str, license: License) -> bool:
        """Whether an entry of a policy, a licence or a set, means this licence.

        A licence without an exception means it with every exception too: exceptions only add to it. Sets are read from
        the rows, and a licence without a row is in none.
        """
        if entry.startswith("@"):
            terms = self.find(license)
            return terms is not None and _in_set(entry.casefold(), terms)
        wanted = _leaf(entry)
        if wanted is None or self._key(wanted.id) != self._key(license.id):
            return False
        return not wanted.exception or wanted.exception.casefold() == license.exception.casefold()

    def check_entry(self, entry: str, where: str) -> None:
        """Raises ConfigError unless the entry of a policy is a set, a catalogued LicenseRef or an SPDX identifier."""
        # A look-alike letter of another script has to look different here.
        shown = ascii(entry if len(entry) <= 60 else f"{entry[:57]}...")
        if entry.startswith("@"):
            if entry.casefold() not in SETS:
                raise ConfigError(f"{where} has no set {shown}{nearest(entry, SETS)}.")
            return
        wanted = _leaf(entry)
        if wanted is None:
            raise ConfigError(
                f"{where} has {shown}, which is no SPDX identifier{nearest(entry, self._known)}; use identifiers "
                "such as 'MIT', or sets such as '@permissive'."
            )
        if wanted.id.casefold().startswith("licenseref-") and self._entry(License(wanted.id)) is None:
            refs = [row.id for row in self.rows if row.id.startswith("LicenseRef-")]
            raise ConfigError(
                f"{where} has {shown}, which is not in the catalogue{nearest(entry, refs)}; add its terms to a file "
                "named under [licenses] catalogue."
            )

    @cached_property
    def _known(self) -> tuple[str, ...]:
        listed = getattr(_spdx(), "LICENSES", {})
        names = {str(value["id"]) for value in listed.values()} | {row.id for row in self.rows} | {*ADDITIONS}
        return tuple(sorted(names))

    def _entry(self, license: License) -> _Entry | None:
        base = self._key(license.id)
        return self._entries.get(f"{base} with {license.exception.casefold()}" if license.exception else base)

    def _key(self, id: str) -> str:
        """The case-folded identifier of the row that an identifier means."""
        key = id.casefold()
        if key in self._entries:
            return key
        return self.aliases.get(key, key.removesuffix("+")).casefold()


def load_catalogue(extra: Sequence[Path] = (), allow_shadow: bool = False) -> Catalogue:
    """The shipped rows, and those of `extra` files.

    Raises ConfigError for a file that cannot be read, an unknown key, an identifier that is none or stands there twice,
    and a row that would replace a shipped one, unless `allow_shadow`.
    """
    shipped, aliases = _shipped()
    own: dict[str, _Entry] = {}
    for path in extra:
        for terms in parse_rows(path):
            key = _identifier(terms, path)
            if key in own:
                raise ConfigError(f"{path}: {terms.id} already has a row in {own[key].source}; remove one.")
            meant = aliases.get(key, key.removesuffix("+")).casefold()
            if not allow_shadow and (key in shipped or meant in shipped):
                raise ConfigError(
                    f"{path}: {terms.id} has reviewed terms in glmserve-licenses; use another LicenseRef, or allow "
                    "shadowing if you mean to replace them."
                )
            own[key] = _Entry(terms, path, path.parent)
    local = frozenset(entry.terms.id for entry in own.values())
    return Catalogue({**shipped, **own}, aliases, local)


@lru_cache(maxsize=1)
def _shipped() -> tuple[Mapping[str, _Entry], Mapping[str, str]]:
    entries: dict[str, _Entry] = {}
    for path in glmserve_licenses.terms_files():
        for terms in parse_rows(path):
            key = _identifier(terms, path)
            if key in entries:
                raise ConfigError(f"{path}: {terms.id} already has a row in {entries[key].source}; remove one.")
            entries[key] = _Entry(terms, path, glmserve_licenses.TEXTS)
    aliases = tomllib.loads(glmserve_licenses.ALIASES.read_text("utf-8"))
    return entries, {name.casefold(): id for name, id in aliases.items()}


def _identifier(terms: Terms, path: Path) -> str:
    leaf = _leaf(terms.id)
    if leaf is None or str(leaf) != terms.id:
        raise ConfigError(f"{path}: {terms.id!r} is no licence identifier; use an SPDX identifier or a LicenseRef.")
    return leaf.key


def _leaf(text: str) -> License | None:
    """The single licence that the text names, or None."""
    try:
        tree = parse(text)
    except MalformedExpression:
        return None
    return tree if isinstance(tree, License) and not re.search(r"[()\s]", tree.id) else None


def _in_set(name: str, terms: Terms) -> bool:
    if name == "@noncommercial":
        return terms.commercial == "no"
    if name == "@no-derivatives":
        return terms.share_modified == "no"
    if name == "@gated":
        return bool(terms.gates)
    return name == f"@{terms.category}"


def _spdx() -> Any:
    """The module of `packaging` that has the SPDX list. It is not public, so whatever needs it can do without."""
    try:
        return importlib.import_module("packaging.licenses._spdx")
    except ImportError:
        return None
