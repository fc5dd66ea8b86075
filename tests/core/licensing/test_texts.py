"""Licence texts: what counts as the same file, and what is recognised as which licence."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import glmserve_licenses
import pytest
from glmserve.licensing.texts import MAX_CHARACTERS, contained, digest, identify, normalise
from hypothesis import given, settings
from hypothesis import strategies as st


def shipped(name: str) -> str:
    return (glmserve_licenses.TEXTS / f"{name}.txt").read_text("utf-8")


MIT = shipped("MIT")
BSD = shipped("BSD-3-Clause")


@pytest.mark.parametrize(
    "data",
    [
        b"\xef\xbb\xbfCopyright\r\n\r\nA \xc3\xa9 \t\r\n",
        b"\n\nCopyright\r\rA \xc3\xa9",
        b"Copyright\n\n\fA \xc3\xa9   \n\n\n",
        "Copyright\n\nA é\n".encode("latin-1"),
        "Copyright\n\nA é\n".encode("utf-16"),
        "Copyright\n\nA e\u0301\n".encode(),
        "\ufeffCopyright\n\nA é",
    ],
)
def test_encodings_line_ends_and_blanks_make_no_other_text(data: bytes | str) -> None:
    assert normalise(data) == "Copyright\n\nA é\n"
    assert digest(data) == digest("Copyright\n\nA é\n")


def test_a_word_makes_another_text() -> None:
    assert digest(MIT) != digest(MIT.replace("without restriction", "with restriction"))
    assert digest("a\n\nb") != digest("a\nb")


@given(st.binary(max_size=200) | st.text(max_size=200))
def test_normalising_twice_is_normalising_once(data: bytes | str) -> None:
    once = normalise(data)
    assert normalise(once) == once
    assert len(digest(once)) == 64


@given(st.binary(max_size=300))
def test_binary_data_is_no_licence(data: bytes) -> None:
    assert identify(normalise(data)) == contained(normalise(data)) == frozenset()


@pytest.mark.parametrize(
    "text", ["", "\n", "MIT", "MIT License", "Apache License, Version 2.0", "permission " * 100_000, "\0" + MIT]
)
def test_a_name_is_no_text(text: str) -> None:
    assert identify(text) == frozenset()


def test_a_file_of_absurd_length_is_not_read_through() -> None:
    start = time.monotonic()
    assert contained(MIT + "x " * MAX_CHARACTERS) == frozenset()
    assert time.monotonic() - start < 0.1


@pytest.mark.parametrize(
    "text",
    [
        MIT.replace("<year> <copyright holders>", "2012-2026 Ådne Østergård <a@b.example>\nCopyright (c) 2020 Others"),
        "The MIT License (MIT)\n=====\n\n" + MIT.split("\n", 1)[1],
        re.sub(r"^", "// ", MIT, flags=re.MULTILINE),
        MIT.replace("\n", "\r\n"),
        MIT.upper(),
        MIT.replace('"', "\u201c").replace("AUTHORS OR COPYRIGHT HOLDERS", "ACME LTD OR ITS SUPPLIERS"),
        MIT.replace("permission notice shall", "permission notice (including the next paragraph) shall"),
        MIT.replace("license", "licence").replace("License", "Licence"),
    ],
)
def test_holders_titles_and_layout_do_not_matter(text: str) -> None:
    assert identify(text) == {"MIT"}


@pytest.mark.parametrize(
    ("holder", "bullets"),
    [
        ("Google Inc.", ("*", "*", "*")),
        ("Lawrence Berkeley National Laboratory", ("(a)", "(b)", "(c)")),
        ("X", ("", "", "")),
    ],
)
def test_a_bsd_licence_is_recognised_whoever_holds_it(holder: str, bullets: tuple[str, str, str]) -> None:
    text = BSD.replace("the copyright holder nor", f"{holder} nor").replace(
        "COPYRIGHT HOLDER OR", f"{holder.upper()} OR"
    )
    for number, bullet in enumerate(bullets, 1):
        text = text.replace(f"{number}. ", f"{bullet} ", 1)
    assert identify(text) == {"BSD-3-Clause"}


CONDITION = "2. Whoever earns more than a million with it has to ask us before any commercial use.\n\n"


@pytest.mark.parametrize(
    "text",
    [
        MIT.replace("THE SOFTWARE IS", f"{CONDITION}THE SOFTWARE IS", 1),
        MIT + CONDITION,
        CONDITION + MIT,
        MIT.replace("<copyright holders>", "Me. Not for commercial use."),
        MIT.replace("sublicense, and/or sell", "and/or sublicense"),
        MIT.replace("free of charge, to any person", "free of charge, to any person except John Doe"),
        MIT.replace("without restriction", "for noncommercial purposes, without restriction"),
        MIT + "\n不得用于商业用途\n",
        MIT + "\n" + "Jane Doe, " * 100,
        MIT[: len(MIT) // 2],
    ],
)
def test_one_condition_more_or_one_permission_less_is_another_licence(text: str) -> None:
    assert identify(text) == frozenset()


def test_neighbours_are_told_apart() -> None:
    clause = BSD[BSD.index("3. Neither") : BSD.index("THIS SOFTWARE IS PROVIDED BY")]
    assert identify(BSD.replace(clause, "")) == {"BSD-2-Clause"}
    assert identify(shipped("ISC")) == {"ISC"}
    assert identify(shipped("0BSD")) == {"0BSD"}
    assert identify(shipped("CC-BY-NC-ND-4.0").replace("But not Share", "and Share")) <= {"CC-BY-NC-ND-4.0"}


def test_several_texts_in_one_file_are_all_recognised() -> None:
    both = f"Licensed under either of these.\n\n{MIT}\n\n---\n\n{shipped('Apache-2.0')}"
    assert contained(both) == {"MIT", "Apache-2.0"}
    assert identify(both.removeprefix("Licensed under either of these.")) == {"MIT", "Apache-2.0"}


def test_what_stands_around_a_text_does_not_hide_it() -> None:
    assert contained(CONDITION + MIT) == {"MIT"}


@pytest.mark.parametrize("name", ["Apache-2.0", "MPL-2.0", "GPL-3.0-only", "CC-BY-NC-ND-4.0"])
def test_preambles_and_appendices_may_be_missing(name: str) -> None:
    cuts = {
        "Apache-2.0": ("1. Definitions", "APPENDIX"),
        "MPL-2.0": ("1. Definitions", "Exhibit A - Source"),
        "GPL-3.0-only": ("TERMS AND CONDITIONS", "How to Apply"),
        "CC-BY-NC-ND-4.0": ("By exercising", "Creative Commons is not a party"),
    }
    text = shipped(name)
    begin, end = (text.index(mark) for mark in cuts[name])
    assert name in identify(text[begin:end])


WORDS = ["must", "not", "only", "except", "commercial", "sell", "permission", "fee", "unless"]


@settings(deadline=None)
@given(st.data(), st.sampled_from(["MIT", "BSD-2-Clause", "BSD-3-Clause", "ISC", "0BSD", "Apache-2.0", "Zlib"]))
def test_a_word_of_weight_put_in_anywhere_makes_it_another_licence(data: st.DataObject, name: str) -> None:
    words = shipped(name).split()
    at = data.draw(st.integers(0, len(words)))
    text = " ".join([*words[:at], data.draw(st.sampled_from(WORDS)), *words[at:]])
    found = identify(text)
    # "sell" beside the words that surround a text changes nothing there.
    assert name not in found or text.split()[at] in ("sell", "permission")


def _license_files() -> Iterator[tuple[str, str, Path]]:
    """(distribution, declared licence, licence file), of those installed whose metadata names one licence."""
    simple = {"MIT", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MPL-2.0", "PSF-2.0"}
    for distribution in metadata.distributions():
        headers = distribution.metadata
        declared = headers.get("License-Expression") or headers.get("License") or ""
        files = [f for f in distribution.files or [] if re.search(r"dist-info/(licen[cs]es/)?[^/]*$", str(f))]
        files = [f for f in files if re.match(r"(?i)(licen[cs]e|copying)", f.name)]
        if declared in simple and len(files) == 1:
            yield headers["Name"], declared, Path(str(distribution.locate_file(files[0])))


def test_the_licences_of_installed_distributions_are_recognised_and_none_is_taken_for_another() -> None:
    texts = [(name, declared, normalise(path.read_bytes())) for name, declared, path in _license_files()]
    assert len(texts) > 30
    found = {name: (declared, identify(text)) for name, declared, text in texts}
    assert {name: pair for name, pair in found.items() if pair[1] and pair[0] not in pair[1]} == {}
    assert sum(1 for _, ids in found.values() if ids) > 0.85 * len(found)


def test_recognising_is_quick() -> None:
    texts = [f"{shipped(path.stem)}\n{n}" for path in glmserve_licenses.TEXTS.iterdir() for n in range(2)]
    identify(MIT)
    start = time.process_time()
    for text in texts:
        identify(text)
    assert (time.process_time() - start) / len(texts) < 0.005
