"""The licence that core metadata declares: precedence, disagreement, and nothing guessed."""

from __future__ import annotations

import pytest
from glmserve.licensing.installed.classifiers import LICENSES, PREFIX
from glmserve.licensing.installed.declared import MAX_METADATA_BYTES, Declared, declared, read_headers
from glmserve.licensing.report import Reason, Verdict
from hypothesis import given
from hypothesis import strategies as st
from packaging.licenses import canonicalize_license_expression
from trove_classifiers import classifiers

OSI = "License :: OSI Approved :: "
BSD, MIT, APACHE = f"{OSI}BSD License", f"{OSI}MIT License", f"{OSI}Apache Software License"
AGPL = f"{OSI}GNU Affero General Public License v3"
PROPRIETARY = "License :: Other/Proprietary License"
NONCOMMERCIAL = "License :: Free for non-commercial use"


def says(expression: str | None = None, license: str | None = None, *labels: str) -> Declared:
    lines = ["Metadata-Version: 2.4", "Name: x"]
    lines += [f"License-Expression: {expression}"] if expression is not None else []
    lines += [f"License: {license}"] if license is not None else []
    lines += [f"Classifier: {label}" for label in labels]
    return declared(read_headers("\n".join(lines).encode("utf-8", "surrogatepass")))


@pytest.mark.parametrize(
    ("expression", "license", "labels", "declares", "header"),
    [
        ("MIT", None, (), "MIT", "License-Expression"),
        ("mit or apache-2.0", None, (), "MIT OR Apache-2.0", "License-Expression"),
        ("MIT", "MIT", (MIT,), "MIT", "License-Expression"),
        ("MIT", "MIT License", (MIT, f"{OSI[:-4]}"), "MIT", "License-Expression"),
        ("BSD-3-Clause", "BSD", (BSD,), "BSD-3-Clause", "License-Expression"),
        ("LicenseRef-NVIDIA-Proprietary", None, (PROPRIETARY,), "LicenseRef-NVIDIA-Proprietary", "License-Expression"),
        (None, "mpl-2.0 and mit", (), "MPL-2.0 AND MIT", "License"),
        (None, "Apache-2.0", (APACHE,), "Apache-2.0", "License"),
        (None, None, (MIT,), "MIT", "Classifier"),
        (None, "UNKNOWN", (MIT,), "MIT", "Classifier"),
        (None, "some words of our own", (MIT,), "MIT", "Classifier"),
        (None, "", (f"{OSI[:-4]}", f"{OSI}ISC License (ISCL)"), "ISC", "Classifier"),
    ],
)
def test_the_first_header_that_speaks_spdx_declares_the_licence(
    expression: str | None, license: str | None, labels: tuple[str, ...], declares: str, header: str
) -> None:
    found = says(expression, license, *labels)
    assert (found.expression, found.header) == (declares, header)
    assert (found.readings, found.findings, found.said) == ((), (), "")


@pytest.mark.parametrize(
    ("license", "labels"),
    [
        *(("BSD", (BSD,)), ("Apache 2.0 License", (APACHE,)), (None, (BSD,)), (None, (APACHE,)), ("PSFL", ())),
        *(("MIT License", ()), ("Dual licensed", (MIT, APACHE)), (None, (MIT, f"{OSI}ISC License (ISCL)"))),
        *(
            ("GPL", (f"{OSI}GNU General Public License v3 (GPLv3)",)),
            (None, (NONCOMMERCIAL,)),
        ),
        *((None, (PROPRIETARY,)), ("NVIDIA Proprietary Software", (PROPRIETARY,)), ("MIT" * 40000, ())),
    ],
)
def test_other_spellings_are_quoted_and_not_guessed(license: str | None, labels: tuple[str, ...]) -> None:
    found = says(None, license, *labels)
    assert (found.expression, found.header, found.readings, found.findings) == ("", "", (), ())
    assert (license or labels[0].removeprefix(PREFIX))[:50] in found.said
    assert len(found.said) < 300


def test_nothing_at_all_declares_nothing() -> None:
    assert says() == says(None, "UNKNOWN") == says(None, "", OSI[:-4]) == Declared("", "", "", (), ())


@pytest.mark.parametrize(
    ("expression", "license", "labels", "readings"),
    [
        ("MIT", None, (AGPL,), ("AGPL-3.0-only", "AGPL-3.0-or-later")),
        ("MIT", "GPL-3.0-only", (), ("GPL-3.0-only",)),
        ("Apache-2.0 OR MIT", "MIT", (), ("MIT",)),
        (None, "Apache-2.0", (MIT,), ("MIT",)),
        ("MIT", "ISC", (MIT, f"{OSI}Zero-Clause BSD (0BSD)"), ("ISC", "0BSD")),
    ],
)
def test_headers_that_disagree_are_all_kept_as_readings(
    expression: str | None, license: str | None, labels: tuple[str, ...], readings: tuple[str, ...]
) -> None:
    found = says(expression, license, *labels)
    assert found.readings == readings
    assert {f.code for f in found.findings} == {Reason.METADATA_CONFLICT}
    # The verdict is the worst of the readings, and needs no more from the finding.
    assert {f.verdict for f in found.findings} == {Verdict.ALLOW}


@pytest.mark.parametrize(
    ("expression", "license", "labels"),
    [
        ("MIT", "Proprietary", ()),
        ("MIT", "GNU AGPLv3", ()),
        ("MIT", None, (PROPRIETARY,)),
        ("MIT", None, (NONCOMMERCIAL,)),
        # nvidia-nvtx-cu12 12.9.79 says this.
        (None, "Apache 2.0", (PROPRIETARY,)),
    ],
)
def test_a_disagreement_that_no_expression_stands_for_is_unknown(
    expression: str | None, license: str | None, labels: tuple[str, ...]
) -> None:
    found = says(expression, license, *labels)
    assert found.readings == ()
    assert [(f.code, f.verdict) for f in found.findings] == [(Reason.METADATA_CONFLICT, Verdict.UNKNOWN)]


def test_a_malformed_expression_is_kept_as_it_is_found_and_nothing_else_is_tried() -> None:
    found = says("MIT OR OR", "MIT", MIT)
    assert (found.expression, found.header) == ("MIT OR OR", "License-Expression")
    assert found.readings == ("MIT",)
    assert says("NOASSERTION").expression == "NOASSERTION"


def test_two_expressions_are_two_readings() -> None:
    found = declared(read_headers(b"License-Expression: MIT\nLicense-Expression: GPL-3.0-only\n"))
    assert (found.expression, found.readings) == ("MIT", ("GPL-3.0-only",))


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_headers_end_at_the_first_blank_line(end: str) -> None:
    text = end.join(["Name: a", "License-Expression: MIT", "", "License-Expression: GPL-3.0-only", ""])
    for prefix in (b"", b"\xef\xbb\xbf"):
        assert read_headers(prefix + text.encode()).all("license-expression") == ("MIT",)


def test_continuation_lines_and_repeated_headers_are_read() -> None:
    headers = read_headers(
        b"License: first\n        second\n       |third\nlicense-file: A\nLICENSE-FILE:B\n junk\nno header\n"
    )
    assert headers.get("License") == "first\nsecond\nthird"
    assert headers.all("License-File") == ("A", "B\njunk")


def test_a_megabyte_of_garbage_is_survived() -> None:
    for data in (
        b"\0" * (1 << 20),
        b"x" * (2 << 20),
        b"A: b\n" * (1 << 18),
        b"A:\n" + b" y\n" * 40000,
        bytes(range(256)) * 4096,
    ):
        assert len(read_headers(data).fields) <= MAX_METADATA_BYTES // 5 + 1
    beyond = b"Name: a\n" + b"X: y\n" * (MAX_METADATA_BYTES // 5) + b"License-Expression: MIT\n"
    assert read_headers(beyond).get("License-Expression") == ""


def test_classifiers_and_identifiers_are_spelt_as_their_lists_spell_them() -> None:
    assert set(LICENSES) <= set(classifiers)
    for meant in LICENSES.values():
        assert [canonicalize_license_expression(id) for id in meant] == list(meant)


FREE = st.text(st.characters(blacklist_characters="\r\n"), max_size=60)
LABELS = st.lists(st.sampled_from(sorted(LICENSES)) | FREE.map(lambda text: f"License :: {text}"), max_size=4)


@given(st.none() | FREE | st.just("MIT"), st.none() | FREE | st.just("MIT"), LABELS)
def test_any_header_gives_an_answer(expression: str | None, license: str | None, labels: list[str]) -> None:
    found = says(expression, license, *labels)
    assert bool(found.expression) == bool(found.header)
    assert not (found.expression and found.said)


@given(LABELS)
def test_a_further_classifier_never_makes_a_declared_licence_milder(labels: list[str]) -> None:
    before, after = says("MIT", None, *labels), says("MIT", None, *labels, AGPL)
    assert set(before.readings) <= set(after.readings)
    assert "AGPL-3.0-only" in after.readings


@given(st.binary(max_size=300))
def test_any_bytes_are_headers(data: bytes) -> None:
    declared(read_headers(data))
