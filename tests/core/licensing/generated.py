"""Reports that nobody would write by hand: strange names, malformed expressions, licences that no catalogue has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from glmserve.api.components import ComponentKind, Delivery, Relation
from glmserve.licensing.expressions import MalformedExpression, parse
from glmserve.licensing.report import Component, Finding, LicenseText, Reason, Report, Row, Ruling, Use, Verdict
from hypothesis import strategies as st

from .reports import component, report

LEAVES = (
    *("MIT", "GPL-3.0-only", "GPL-2.0+", "BSD-3-Clause", "CC-BY-NC-ND-4.0", "Apache-2.0 WITH LLVM-exception"),
    *("LicenseRef-GLM-5.3", "LicenseRef-foo", "LicenseRef-FOO", "OpenMDW-1.0"),
)
ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=30)
"""Lone surrogates and control characters included."""
TEXT = st.text(max_size=30)
"""What a manifest can hold: no lone surrogates."""


def _joined(terms: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.lists(terms, min_size=2, max_size=3).flatmap(
        lambda parts: st.sampled_from([" AND ", " OR "]).map(lambda word: f"({word.join(parts)})")
    )


EXPRESSIONS = st.recursive(st.sampled_from(LEAVES), _joined, max_leaves=5).map(lambda text: str(parse(text)))
DECLARED = st.one_of(
    EXPRESSIONS, st.sampled_from(["", "NOASSERTION", "MIT OR OR", "GLM-5.3", "MIT/X11", "\u041cIT", "x" * 999]), TEXT
)
URLS = st.one_of(
    TEXT,
    st.sampled_from(
        [
            *("https://huggingface.co/a/b", "https://huggingface.co/a", "https://huggingface.co/a/../b%2f"),
            *("https://github.com/A/b.git", "https://hub.example.org/a/b?x=%41", "http://[::1", "https://a b.org"),
            *("file:///etc/passwd", "docker.io/library/base", "https://x.org/a%zz", "https://localhost/x"),
        ]
    ),
)
REVISIONS = st.one_of(TEXT, st.sampled_from(["main", "a" * 40, "sha256:" + "b" * 64, "1.0+cu130"]))


@st.composite
def components(draw: st.DrawFn, component_id: str, others: Sequence[str]) -> Component:
    origin = st.fixed_dictionaries(
        {
            "type": st.sampled_from(["hf", "wheel", "git", "oci", "file"]),
            "url": URLS,
            "revision": REVISIONS,
            "publisher": TEXT,
        }
    )
    changes: dict[str, Any] = {
        "name": draw(st.text(min_size=1, max_size=20)),
        "version": draw(TEXT),
        "delivery": draw(st.sampled_from(get_args(Delivery))),
        "license": {"declared_at": draw(URLS)},
        "attribution": {"copyright": draw(st.lists(TEXT, max_size=2))},
        "files": draw(st.lists(_files(), max_size=3)),
        "derived_from": draw(st.lists(_ancestors(others), max_size=2)),
        "to_confirm": draw(st.lists(TEXT, max_size=2)),
        "environment": draw(st.booleans()),
        "distribution": draw(st.one_of(TEXT, st.just("Some_Dist"))),
        "texts": tuple(draw(st.lists(st.builds(LicenseText, ANY_TEXT, st.just("0" * 64), ANY_TEXT), max_size=2))),
        "notices": tuple(draw(st.lists(ANY_TEXT, max_size=2))),
        "readings": tuple(draw(st.lists(DECLARED, max_size=2))),
        "source": draw(ANY_TEXT),
    }
    if draw(st.booleans()):
        changes["origin"] = draw(origin)
    return component(component_id, draw(st.sampled_from(get_args(ComponentKind))), draw(DECLARED), **changes)


def _files() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "path": st.sampled_from(["a.safetensors", "b/c d.bin", "\u00e9"]),
            "sha256": st.sampled_from(["0" * 64, "a" * 64]),
            "size": st.integers(0, 1 << 50),
        }
    )


def _ancestors(others: Sequence[str]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {"id": st.sampled_from([*others, "somewhere-else"]), "relation": st.sampled_from(get_args(Relation))}
    )


FINDINGS = st.builds(
    Finding,
    st.sampled_from(Reason),
    st.sampled_from(Verdict),
    ANY_TEXT,
    ANY_TEXT,
    st.lists(ANY_TEXT, max_size=3).map(tuple),
)


@st.composite
def rulings(draw: st.DrawFn) -> Ruling:
    findings = sorted(draw(st.lists(FINDINGS, max_size=2)), key=lambda finding: -finding.verdict)
    worst = findings[0].verdict if findings else Verdict.ALLOW
    return Ruling(worst, tuple(findings), draw(st.booleans()))


@st.composite
def reports(draw: st.DrawFn) -> Report:
    ids = draw(st.lists(st.from_regex(r"[a-c][a-c_.-]{0,3}", fullmatch=True), max_size=4, unique=True))
    uses = draw(st.lists(st.sampled_from(Use), min_size=1, unique=True))
    rows = []
    for component_id in ids:
        part = draw(components(component_id, ids))
        declared = part.manifest.license.expression
        try:
            declared = str(parse(declared))
            concluded = draw(st.sampled_from([declared, "MIT", ""]))
        except MalformedExpression:
            concluded = ""
        rows.append(Row(part, declared, concluded, {use: draw(rulings()) for use in uses}))
    return report(
        rows,
        uses,
        profile=draw(ANY_TEXT),
        commercial=draw(st.booleans()),
        strict=draw(st.booleans()),
        warnings=tuple(draw(st.lists(ANY_TEXT, max_size=2))),
    )
