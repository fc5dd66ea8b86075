"""The licence that a Python distribution declares in its core metadata (PEP 639 and what came before it).

Nothing is guessed: "BSD" and "Apache 2.0 License" are quoted, not translated. Where two headers disagree, every reading
is kept, so that the verdict can be the worst of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ..expressions import ABSENT, MalformedExpression, licenses, parse, same
from ..report import Finding, Reason, Verdict
from .classifiers import IGNORED, LICENSES, PREFIX, PROPRIETARY

MAX_METADATA_BYTES = 1 << 20
"""What lies beyond is not read: headers come first, and honest ones have a few kilobytes."""


@dataclass(frozen=True)
class Headers:
    """The header fields of a METADATA or PKG-INFO file, in their order, without the description under them."""

    fields: tuple[tuple[str, str], ...]
    """(name in lower case, value with its continuation lines unfolded)."""

    def all(self, name: str) -> tuple[str, ...]:
        """Every value of the field, "" included."""
        return tuple(value for key, value in self.fields if key == name.lower())

    def get(self, name: str) -> str:
        """Its first value, or ""."""
        return next(iter(self.all(name)), "")


@dataclass(frozen=True)
class Declared:
    """What the headers of one distribution say about its licence."""

    expression: str
    """Canonical where it parses, otherwise as found; "" when nothing declares an SPDX licence."""
    header: str
    """The header it is from: "License-Expression", "License", "Classifier", or ""."""
    said: str
    """When there is no expression: what the headers say instead, for people; otherwise ""."""
    readings: tuple[str, ...]
    """What other headers say, where they disagree with `expression`."""
    findings: tuple[Finding, ...]
    """METADATA_CONFLICT, once for every header that disagrees."""


def read_headers(data: bytes) -> Headers:
    """Take the headers, leniently: anything decodes, and lines that are no header are passed over."""
    text = data[:MAX_METADATA_BYTES].decode("utf-8", "replace").removeprefix("\ufeff")
    fields: list[tuple[str, list[str]]] = []
    for line in re.split(r"\r\n|\r|\n", text):
        if not line.strip():
            break
        if line[0] in " \t":
            if fields:
                # Setuptools marks continuations with a bar.
                fields[-1][1].append(re.sub(r"^ {7}[|]", "", line).strip())
            continue
        name, colon, value = line.partition(":")
        if colon and re.fullmatch(r"[A-Za-z0-9-]+", name):
            fields.append((name.lower(), [value.strip()]))
    return Headers(tuple((name, "\n".join(lines)) for name, lines in fields))


def declared(headers: Headers) -> Declared:
    """The declared licence: License-Expression, else License where it is SPDX, else an unambiguous classifier."""
    expressions = [e for e in headers.all("License-Expression") if e]
    free = " ".join(headers.get("License").split())
    canonical = _canonical(free)
    labels = [c for c in headers.all("Classifier") if c.startswith(PREFIX) and c not in IGNORED]
    single = _unambiguous(labels)
    sources = [("License-Expression", _canonical(e) or e) for e in expressions]
    sources += [("License", canonical)] if canonical else []
    sources += [("Classifier", single)] if single and not sources else []
    if not sources:
        return Declared("", "", _said(free, labels), (), tuple(_unsettled_conflict(free, labels)))
    header, expression = sources[0]
    readings = tuple(dict.fromkeys(other for _, other in sources[1:] if not _agree(expression, other)))
    findings = [
        _conflict(Verdict.ALLOW, header, expression, f"{name} says {other}")
        for name, other in sources[1:]
        if other in readings
    ]
    if not canonical and header != "License" and not _fits(free, expression):
        # It cannot be read as a licence, so no reading stands for it.
        findings.append(_conflict(Verdict.UNKNOWN, header, expression, f"License says {_short(free)!r}"))
    for label in labels if header != "Classifier" else ():
        meant = LICENSES.get(label, ())
        if not _matches(label, meant, _ids(expression)):
            readings += tuple(id for id in meant if id not in readings)
            verdict = Verdict.ALLOW if meant else Verdict.UNKNOWN
            findings.append(_conflict(verdict, header, expression, f"a classifier says {label.removeprefix(PREFIX)!r}"))
    return Declared(expression, header, "", readings, tuple(findings))


def _conflict(verdict: Verdict, header: str, expression: str, other: str) -> Finding:
    message = f"its metadata contradicts itself: {header} says {_short(expression)}, and {other}"
    ways = ("read its licence texts and record what they are under [[licenses.clarify]]", "ask its publisher")
    return Finding(Reason.METADATA_CONFLICT, verdict, message, remedies=ways)


def _unsettled_conflict(free: str, labels: list[str]) -> Iterator[Finding]:
    """Without any SPDX licence, headers can still contradict each other, and no reading stands for that."""
    family = _family(free)
    for label in labels:
        if family and family != _family(label.removeprefix(PREFIX)):
            other = f"a classifier says {label.removeprefix(PREFIX)!r}"
            yield _conflict(Verdict.UNKNOWN, "License", repr(_short(free)), other)


def _canonical(text: str) -> str:
    """The expression in its canonical spelling, or "" when it is none."""
    if text.casefold() in ABSENT:
        return ""
    try:
        return str(parse(text))
    except MalformedExpression:
        return ""


def _agree(one: str, other: str) -> bool:
    try:
        return same(parse(one), parse(other))
    except MalformedExpression:
        return one == other


def _ids(expression: str) -> set[str]:
    try:
        return {license.id for license in licenses(parse(expression))}
    except MalformedExpression:
        return set()


def _matches(label: str, meant: tuple[str, ...], ids: set[str]) -> bool:
    if label == PROPRIETARY:
        return any(id.startswith("LicenseRef-") for id in ids)
    return bool(ids.intersection(meant))


def _unambiguous(labels: list[str]) -> str:
    """The licence of the only classifier, if it can mean one licence only. Two can mean AND or OR."""
    meant = LICENSES.get(labels[0], ()) if len(labels) == 1 else ()
    return meant[0] if len(meant) == 1 else ""


_FAMILIES = {
    "agpl": r"agpl|affero",
    "lgpl": r"lgpl|lesser|library general",
    "gpl": r"gpl|gnu general public",
    "apache": r"apache|asl",
    "mpl": r"mpl|mozilla",
    "bsd": r"[0-3]?bsd|pytorch",
    "mit": r"mit|expat|x11",
    "cc": r"cc0?|creative commons",
    "proprietary": r"proprietary|commercial|all rights reserved|eula|nvidia",
}


def _family(text: str) -> str:
    """A hint of what a short free text is about, "" when there is none. Good enough to doubt, not to conclude."""
    if len(text) > 120:
        return ""
    for family, pattern in _FAMILIES.items():
        if re.search(rf"(?<![a-z])(?:{pattern})(?=v?[0-9]|[^a-z]|$)", text.lower()):
            return family
    return ""


def _fits(free: str, expression: str) -> bool:
    """Whether a free text gives no reason to doubt an expression."""
    family = _family(free)
    if not family or free.casefold() in ABSENT:
        return True
    families = {_family(id.replace("-", " ")) for id in _ids(expression)}
    return family in families or (
        family == "proprietary" and any(id.startswith("LicenseRef-") for id in _ids(expression))
    )


def _said(free: str, labels: list[str]) -> str:
    said = [f"License: {_short(free)!r}"] if free and free.casefold() not in ABSENT else []
    said += [f"classifier {_short(label.removeprefix(PREFIX))!r}" for label in labels]
    return ", ".join(said)


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."
