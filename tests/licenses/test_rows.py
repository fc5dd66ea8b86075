"""The shipped rows: whole, true to their texts, and never more than somebody has read."""

from __future__ import annotations

from typing import get_args

import glmserve_licenses
import pytest
from glmserve.licensing.catalogue import Catalogue, Terms, load_catalogue
from glmserve.licensing.expressions import License, parse
from glmserve.licensing.rows import CLAUSES, Obligation, PermissionName
from glmserve.licensing.texts import contained, digest, identify, normalise

CATALOGUE = load_catalogue()
PROMISED = {
    *(
        "MIT",
        "MIT-0",
        "MIT-CMU",
        "Apache-2.0",
        "Apache-2.0 WITH LLVM-exception",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "0BSD",
    ),
    *(
        "ISC",
        "Zlib",
        "PSF-2.0",
        "Python-2.0",
        "CNRI-Python",
        "BSL-1.0",
        "Unlicense",
        "CC0-1.0",
        "CC-BY-4.0",
        "OpenMDW-1.0",
    ),
    *("MPL-2.0", "LGPL-2.1-only", "LGPL-2.1-or-later", "LGPL-3.0-only", "LGPL-3.0-or-later", "GPL-2.0-only"),
    *("GPL-2.0-or-later", "GPL-3.0-only", "GPL-3.0-or-later", "AGPL-3.0-only", "AGPL-3.0-or-later"),
    *("CC-BY-NC-4.0", "CC-BY-NC-ND-4.0", "LicenseRef-GLM-5.3", "LicenseRef-NVIDIA-Proprietary"),
}
WITHOUT_TEXT = {"LicenseRef-GLM-5.3", "LicenseRef-NVIDIA-Proprietary"}
PERMISSIONS: tuple[str, ...] = get_args(PermissionName)
OBLIGATIONS: tuple[str, ...] = get_args(Obligation)


def row(id: str, catalogue: Catalogue = CATALOGUE) -> Terms:
    tree = parse(id)
    assert isinstance(tree, License)
    terms = catalogue.find(tree)
    assert terms is not None, id
    return terms


EVERY = pytest.mark.parametrize("terms", CATALOGUE.rows, ids=lambda terms: terms.id)


def test_every_promised_licence_has_a_row() -> None:
    assert {terms.id for terms in CATALOGUE.rows} == PROMISED


@EVERY
def test_every_row_says_who_read_the_text_and_where_it_is_published(terms: Terms) -> None:
    assert terms.canonical_url.startswith("https://")
    assert terms.reviewed_by.endswith("not legal advice")
    assert terms.reviewed_on.isoformat() <= glmserve_licenses.__version__.replace(".", "-")
    assert terms.summary.strip().endswith(".")


@EVERY
def test_what_a_row_says_has_a_clause_of_the_text(terms: Terms) -> None:
    if terms.id == "LicenseRef-NVIDIA-Proprietary":  # a family of texts
        assert terms.clauses == {}
        return
    # Where a licence does not speak of services, permission to use for any purpose covers them.
    settled = {name for name in PERMISSIONS if getattr(terms, name) != "unknown"} - {"hosted_service"}
    assert (settled | set(terms.obligations)) <= set(terms.clauses)
    assert set(terms.clauses) <= CLAUSES
    assert {name for name in terms.clauses if name in OBLIGATIONS} == set(terms.obligations)


@EVERY
def test_a_permission_that_is_unknown_says_why(terms: Terms) -> None:
    if "unknown" in [getattr(terms, name) for name in PERMISSIONS]:
        assert terms.uncertain


@EVERY
def test_every_text_is_the_one_on_record(terms: Terms) -> None:
    text = CATALOGUE.text(parse(terms.id))  # type: ignore[arg-type]
    if terms.id in WITHOUT_TEXT:
        assert text is None
        assert terms.text_sha256 == ()
        return
    assert text is not None
    assert text.sha256 == terms.text_sha256[0] == digest(text.text)
    assert terms.id in contained(text.text)


def test_every_text_file_belongs_to_a_row_and_is_normalised() -> None:
    named = {name for terms in CATALOGUE.rows for name in terms.text}
    files = {path.name: path.read_bytes() for path in glmserve_licenses.TEXTS.iterdir()}
    assert set(files) == named
    assert {name for name, data in files.items() if normalise(data).encode() != data} == set()


def test_every_text_is_recognised_as_itself_and_as_no_other() -> None:
    # The Python licence is a stack, and two of its layers have names of their own.
    layers = {"Python-2.0": {"Python-2.0", "PSF-2.0", "CNRI-Python"}}
    for path in glmserve_licenses.TEXTS.iterdir():
        if path.stem != "LLVM-exception":
            base = path.stem.removesuffix("-only")
            expected = {base} if base == path.stem else {f"{base}-only", f"{base}-or-later"}
            assert identify(path.read_text("utf-8")) == layers.get(base, expected)


def test_an_exception_alone_is_no_licence() -> None:
    exception = (glmserve_licenses.TEXTS / "LLVM-exception.txt").read_text("utf-8")
    licence = (glmserve_licenses.TEXTS / "Apache-2.0.txt").read_text("utf-8")
    assert identify(exception) == frozenset()
    assert identify(licence + exception) == {"Apache-2.0", "Apache-2.0 WITH LLVM-exception"}


def test_the_text_of_the_glm_licence_is_not_shipped_while_nobody_has_compared_it() -> None:
    for path in glmserve_licenses.ROOT.rglob("*.txt"):
        text = path.read_text("utf-8").casefold()
        assert "z.ai" not in text
        assert "model as a service" not in text
    glm = row("licenseref-glm-5.3")
    assert glm.text == glm.text_sha256 == ()
    assert "compared" in glm.uncertain[0]


def test_the_gate_of_glm_asks_two_facts_about_the_user() -> None:
    (gate,) = row("LicenseRef-GLM-5.3").gates
    assert (gate.kind, gate.clause) == ("revenue", "2")
    assert set(gate.facts) == {"maas_business", "group_revenue_over_usd_10b_12m"}
    assert gate.lifted_by == "zai_security_review"
    assert [terms.id for terms in CATALOGUE.rows if terms.gates] == ["LicenseRef-GLM-5.3"]


def test_the_drafters_licence_may_be_shared_verbatim_but_not_commercially_and_not_changed() -> None:
    terms = row("CC-BY-NC-ND-4.0")
    assert (terms.redistribute, terms.commercial, terms.modify, terms.share_modified) == ("yes", "no", "yes", "no")
    assert terms.clauses["commercial"] == "2(a)(1)"
    assert terms.clauses["redistribute"] == "2(a)(1)(A)"
    assert "attribution_link" in terms.obligations


def test_what_nvidia_permits_beyond_use_is_unknown() -> None:
    terms = row("LicenseRef-NVIDIA-Proprietary")
    answers = {name: getattr(terms, name) for name in PERMISSIONS}
    assert answers == {**dict.fromkeys(PERMISSIONS, "unknown"), "use": "yes"}


def test_aliases_lead_to_rows() -> None:
    for old in CATALOGUE.aliases:
        assert row(old).id == CATALOGUE.aliases[old]
