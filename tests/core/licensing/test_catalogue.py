"""The catalogue: which row answers for a licence, what policies may name, and files of the user's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from glmserve.api import ConfigError, IntegrityError
from glmserve.licensing.catalogue import SETS, Catalogue, load_catalogue
from glmserve.licensing.expressions import License
from glmserve.licensing.texts import digest
from hypothesis import given
from hypothesis import strategies as st

SHIPPED = load_catalogue()
ROW = """
schema = "glmserve.terms/1"
[[terms]]
id = "LicenseRef-Foo"
name = "Foo terms"
category = "proprietary"
summary = "Ours."
use = "yes"
obligations = []
reviewed_on = 2026-11-30
reviewed_by = "legal@example.org"
"""


def load(tmp_path: Path, text: str, allow_shadow: bool = False) -> Catalogue:
    path = tmp_path / "own.toml"
    path.write_text(text)
    return load_catalogue([path], allow_shadow)


def refusal(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    message = str(caught.value)
    assert message.endswith(".")
    assert "\n" not in message
    return message.replace(f"{tmp_path}/", "")


def row_of(license: License, catalogue: Catalogue = SHIPPED) -> str:
    terms = catalogue.find(license)
    return terms.id if terms is not None else ""


@pytest.mark.parametrize(
    ("license", "row"),
    [
        (License("MIT"), "MIT"),
        (License("licenseref-glm-5.3"), "LicenseRef-GLM-5.3"),
        (License("Apache-2.0", "LLVM-exception"), "Apache-2.0 WITH LLVM-exception"),
        (License("Apache-2.0", "llvm-EXCEPTION"), "Apache-2.0 WITH LLVM-exception"),
        (License("Apache-2.0", "Classpath-exception-2.0"), "Apache-2.0"),
        (License("Apache-2.0+"), "Apache-2.0"),
        (License("Apache-2.0+", "LLVM-exception"), "Apache-2.0 WITH LLVM-exception"),
        (License("GPL-3.0"), "GPL-3.0-only"),
        (License("GPL-3.0+"), "GPL-3.0-or-later"),
        (License("GPL-3.0-only+"), "GPL-3.0-only"),
        (License("LGPL-2.1"), "LGPL-2.1-only"),
        (License("GPL-2.0-with-classpath-exception"), "GPL-2.0-only"),
        (License("GPL-1.0-only"), ""),
        (License("LicenseRef-Foo"), ""),
        (License("CC-BY-NC-SA-4.0"), ""),
        (License("GLM-5.3"), ""),
    ],
)
def test_the_row_that_answers_for_a_licence(license: License, row: str) -> None:
    assert row_of(license) == row


@given(st.sampled_from(SHIPPED.rows), st.text(alphabet="abcdefghij-.", min_size=1, max_size=20))
def test_an_exception_that_nobody_reviewed_loosens_nothing(terms: object, exception: str) -> None:
    id = terms.id  # type: ignore[attr-defined]
    if " WITH " not in id:
        assert SHIPPED.find(License(id, f"{exception}-x")) is terms


def test_a_text_comes_only_for_what_has_a_row_of_its_own() -> None:
    assert SHIPPED.text(License("LicenseRef-GLM-5.3")) is None
    assert SHIPPED.text(License("LicenseRef-Foo")) is None
    assert SHIPPED.text(License("Apache-2.0", "Classpath-exception-2.0")) is None
    both = SHIPPED.text(License("Apache-2.0", "LLVM-exception"))
    assert both is not None
    assert "Apache License" in both.text
    assert "LLVM Exceptions" in both.text
    assert both.path == ""
    lesser = SHIPPED.text(License("LGPL-3.0+"))
    assert lesser is not None
    assert "LESSER GENERAL PUBLIC" in lesser.text
    assert "How to Apply These Terms" in lesser.text  # the GPL, which it builds on


@pytest.mark.parametrize(
    ("entry", "yes", "no"),
    [
        (
            "@permissive",
            ["MIT", "CC0-1.0", "CC-BY-4.0", "OpenMDW-1.0"],
            ["MPL-2.0", "CC-BY-NC-4.0", "LicenseRef-GLM-5.3"],
        ),
        ("@weak-copyleft", ["MPL-2.0", "LGPL-3.0"], ["GPL-2.0-only", "MIT"]),
        ("@strong-copyleft", ["GPL-2.0-or-later", "GPL-3.0+"], ["AGPL-3.0-only", "LGPL-2.1-only"]),
        ("@network-copyleft", ["AGPL-3.0-only"], ["GPL-3.0-only"]),
        (
            "@noncommercial",
            ["CC-BY-NC-4.0", "CC-BY-NC-ND-4.0"],
            ["LicenseRef-GLM-5.3", "LicenseRef-NVIDIA-Proprietary"],
        ),
        ("@no-derivatives", ["CC-BY-NC-ND-4.0"], ["CC-BY-NC-4.0", "LicenseRef-NVIDIA-Proprietary"]),
        ("@Gated", ["licenseref-glm-5.3"], ["MIT", "CC-BY-NC-4.0"]),
        ("mit", ["MIT", "MIT+"], ["MIT-0", "LicenseRef-MIT"]),
        ("GPL-3.0", ["GPL-3.0-only", "GPL-3.0"], ["GPL-3.0-or-later", "GPL-2.0-only"]),
        ("LicenseRef-glm-5.3", ["LicenseRef-GLM-5.3"], ["LicenseRef-GLM-5.3-Flash"]),
    ],
)
def test_what_an_entry_of_a_policy_means(entry: str, yes: list[str], no: list[str]) -> None:
    SHIPPED.check_entry(entry, "allow")
    assert [id for id in yes if not SHIPPED.matches(entry, License(id))] == []
    assert [id for id in no if SHIPPED.matches(entry, License(id))] == []


def test_an_entry_means_the_licence_with_any_exception_and_an_exception_only_itself() -> None:
    plain, llvm = License("Apache-2.0"), License("Apache-2.0", "LLVM-exception")
    assert SHIPPED.matches("Apache-2.0", llvm)
    assert SHIPPED.matches("apache-2.0 with llvm-exception", llvm)
    assert not SHIPPED.matches("Apache-2.0 WITH LLVM-exception", plain)


def test_a_licence_without_a_row_is_in_no_set_and_can_be_named() -> None:
    assert [name for name in SETS if SHIPPED.matches(name, License("EUPL-1.2"))] == []
    SHIPPED.check_entry("EUPL-1.2", "allow")
    assert SHIPPED.matches("EUPL-1.2", License("EUPL-1.2"))


@pytest.mark.parametrize(
    ("entry", "advice"),
    [
        ("@permisive", "did you mean '@permissive'"),
        ("@", "there is @permissive"),
        ("Apache2", "did you mean 'Apache-2.0'"),
        ("apache", "such as 'MIT'"),
        ("MIT OR Apache-2.0", "no SPDX identifier"),
        ("", "no SPDX identifier"),
        ("МIT", r"'\u041cIT'"),  # noqa: RUF001 - a Cyrillic letter
        ("LicenseRef-GLM-5.2", "did you mean 'LicenseRef-GLM-5.3'"),
        ("OpenMDW-1.1", "did you mean 'OpenMDW-1.0'"),
        ("MIT WITH nothing", "no SPDX identifier"),
        ("M" * 100_000, "no SPDX identifier"),
    ],
)
def test_a_misspelt_entry_is_refused_with_the_nearest_right_one(entry: str, advice: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SHIPPED.check_entry(entry, "[licenses.policy] allow")
    message = str(caught.value)
    assert message.startswith("[licenses.policy] allow has ")
    assert advice in message
    assert len(message) < 400
    assert caught.value.exit_code == 2


def test_facts_and_documents_are_those_of_the_gates() -> None:
    assert SHIPPED.facts == {"maas_business", "group_revenue_over_usd_10b_12m"}
    assert SHIPPED.documents == {"zai_security_review"}


def test_versions_are_known() -> None:
    assert SHIPPED.version.count(".") == 2
    assert SHIPPED.spdx_version.startswith("3.")


def test_a_row_of_the_users_own_answers_and_is_marked_local(tmp_path: Path) -> None:
    catalogue = load(tmp_path, ROW)
    assert row_of(License("licenseref-foo"), catalogue) == "LicenseRef-Foo"
    assert catalogue.local == {"LicenseRef-Foo"}
    catalogue.check_entry("LicenseRef-Foo", "allow")
    terms = catalogue.find(License("LicenseRef-Foo"))
    assert terms is not None
    assert (terms.use, terms.commercial, terms.redistribute) == ("yes", "unknown", "unknown")
    assert SHIPPED.local == frozenset()
    assert SHIPPED.find(License("LicenseRef-Foo")) is None


def test_a_row_of_the_users_own_brings_its_text(tmp_path: Path) -> None:
    (tmp_path / "foo.txt").write_bytes(b"Foo may be used.\r\n")
    text = 'text = ["foo.txt"]\ntext_sha256 = ["%s"]\n'
    found = load(tmp_path, ROW + text % digest("Foo may be used.")).text(License("LicenseRef-Foo"))
    assert found is not None
    assert found.text == "Foo may be used.\n"
    with pytest.raises(IntegrityError, match="not the one on record"):
        load(tmp_path, ROW + text % digest("Foo may be sold.")).text(License("LicenseRef-Foo"))
    (tmp_path / "foo.txt").unlink()
    with pytest.raises(ConfigError, match=r"foo\.txt cannot be read"):
        load(tmp_path, ROW + text % digest("Foo may be used.")).text(License("LicenseRef-Foo"))


@pytest.mark.parametrize("id", ["MIT", "mit", "licenseref-GLM-5.3", "GPL-3.0", "GPL-3.0+", "Apache-2.0+"])
def test_a_shipped_row_is_not_replaced_unless_asked(tmp_path: Path, id: str) -> None:
    from glmserve.licensing.expressions import parse

    text = ROW.replace("LicenseRef-Foo", str(parse(id)))
    assert "has reviewed terms" in refusal(tmp_path, text)
    assert load(tmp_path, text, allow_shadow=True).local == {str(parse(id))}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (('use = "yes"', "use = true"), "terms.0.use"),
        (('use = "yes"', 'use = "perhaps"'), "terms.0.use"),
        (('use = "yes"', 'comercial = "yes"'), "terms.0.comercial"),
        (('use = "yes"', 'use = "yes"\nuse = "no"'), "no file of licence terms"),
        (("obligations = []", ""), "terms.0.obligations"),
        (("obligations = []", 'obligations = ["licence_text"]'), "terms.0.obligations.0"),
        (("obligations = []", 'obligations = []\nclauses = { comercial = "2" }'), "terms.0.clauses"),
        (("obligations = []", "obligations = []\nlocal = false"), "terms.0.local"),
        (("obligations = []", 'obligations = []\ntext = ["../../etc/passwd"]'), "terms.0.text.0"),
        (("obligations = []", 'obligations = []\ntext_sha256 = ["abc"]'), "terms.0.text_sha256.0"),
        (('reviewed_by = "legal@example.org"', 'reviewed_by = ""'), "terms.0.reviewed_by"),
        (("2026-11-30", '"2026-11-30"'), "terms.0.reviewed_on"),
        (("terms/1", "terms/2"), "schema"),
        (('schema = "glmserve.terms/1"', ""), "schema"),
        (("[[terms]]", "[terms]"), "terms"),
        (("LicenseRef-Foo", "Foo"), "no licence identifier"),
        (("LicenseRef-Foo", "MIT OR ISC"), "no licence identifier"),
        (("LicenseRef-Foo", "eupl-1.2"), "no licence identifier"),
        (("Ours.", "Ours\0"), "no file of licence terms"),
    ],
)
def test_a_row_that_does_not_fit_is_refused_by_its_key(tmp_path: Path, change: tuple[str, str], complaint: str) -> None:
    assert complaint in refusal(tmp_path, ROW.replace(*change))


def test_gates_of_the_users_own_add_facts(tmp_path: Path) -> None:
    gate = '[[terms.gates]]\nkind = "mau"\nsummary = "many users"\nfacts = ["mau_over_100m"]\n'
    assert "mau_over_100m" in load(tmp_path, ROW + gate).facts
    assert "terms.0.gates.0.kind" in refusal(tmp_path, ROW + gate.replace('"mau"', '"users"'))
    assert "terms.0.gates.0.facts.0" in refusal(tmp_path, ROW + gate.replace("mau_over", "MAU over"))


def test_one_licence_has_one_row(tmp_path: Path) -> None:
    second = ROW.split("[[terms]]")[1].replace("LicenseRef-Foo", "LicenseRef-FOO")
    assert "already has a row" in refusal(tmp_path, f"{ROW}\n[[terms]]{second}")


def test_files_that_are_missing_large_or_no_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_catalogue([tmp_path / "missing.toml"])
    with pytest.raises(ConfigError, match="cannot be read"):
        load_catalogue([tmp_path])
    (tmp_path / "own.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="no file of licence terms"):
        load_catalogue([tmp_path / "own.toml"])
    assert "more than" in refusal(tmp_path, "#" * (1 << 20) + "\n")
