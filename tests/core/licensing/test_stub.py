"""Fetch stubs: they pin, they carry nothing, and nothing else is taken for one."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from glmserve.api import GlmserveError, IntegrityError
from glmserve.licensing.bundle.stub import FetchStub, address_fault, make_stub, not_fetchable, read_stub
from glmserve.licensing.report import Finding, Reason, Verdict
from hypothesis import given, settings
from hypothesis import strategies as st

from .assembly import DRAFTER_FILES, drafter, drafter_row, entries
from .reports import DRAFTER, NEVER, component, row

TEXTS: dict[str, str | None] = {"CC-BY-NC-ND-4.0": "0" * 64}


def stub(**changes: Any) -> FetchStub:
    return make_stub(drafter_row(drafter(**changes)), NEVER, TEXTS)


def test_a_stub_comes_back_as_it_was() -> None:
    made = stub()
    assert read_stub(made.serialise(), "x") == made
    assert made.origin.revision == DRAFTER
    assert made.message == NEVER.message
    assert json.loads(made.serialise())["schema"] == "glmserve.fetch-stub/1"


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.from_regex(r"[a-z]{1,8}\.bin", fullmatch=True), st.binary(min_size=64, max_size=3000), max_size=4
    ),
    st.text(min_size=1, max_size=60),
    st.text(max_size=200),
)
def test_a_stub_holds_no_64_bytes_of_what_it_stands_for(files: dict[str, bytes], name: str, message: str) -> None:
    part = drafter(files=entries(files), name=name)
    spelt = make_stub(drafter_row(part), Finding(Reason.PROJECT_POLICY, Verdict.DENY, message), TEXTS).serialise()
    for data in files.values():
        pieces = {data[at : at + 64] for at in range(len(data) - 63)}
        assert not any(spelt[at : at + 64] in pieces for at in range(len(spelt) - 63))
    assert read_stub(spelt, "x").name == name


def test_a_stub_holds_no_64_bytes_of_the_drafter_in_the_tests() -> None:
    spelt = stub().serialise()
    for data in DRAFTER_FILES.values():
        assert not any(data[at : at + 64] in spelt for at in range(len(data) - 63))


@pytest.mark.parametrize(
    "url",
    [
        "https://user:secret@huggingface.co/a/b",
        "https://hf_token@huggingface.co/a/b",
        "https://huggingface.co/a/b?token=secret",
        "https://huggingface.co/a/b#secret",
        "https://huggingface.co/a b",
        "https://[::1/a",
        "https:///a",
        "ftp://huggingface.co/a",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "huggingface.co/a/b",
        "https://huggingface.co/\N{CYRILLIC SMALL LETTER A}",
    ],
)
def test_an_address_that_could_carry_a_secret_is_refused_and_not_shown(url: str) -> None:
    assert address_fault(url)
    origin = {"type": "hf", "url": url, "revision": DRAFTER}
    with pytest.raises(GlmserveError, match="There can be no stub for drafter") as refusal:
        stub(origin=origin)
    assert "secret" not in str(refusal.value)
    assert "hf_token" not in str(refusal.value)
    if "://" in url:
        with pytest.raises(GlmserveError, match="an address in its manifest"):
            stub(license={"declared_at": url})


@pytest.mark.parametrize(
    ("origin", "why"),
    [
        (None, "nobody publishes it"),
        ({"type": "file", "url": "model"}, "nobody publishes it"),
        ({"type": "hf", "revision": DRAFTER}, "nobody publishes it"),
        ({"type": "hf", "url": "https://huggingface.co/a/b", "revision": "main"}, "40-digit commit"),
        ({"type": "hf", "url": "https://huggingface.co/a/b", "revision": DRAFTER[:7]}, "40-digit commit"),
        ({"type": "git", "url": "https://github.com/a/b", "revision": DRAFTER.upper()}, "40-digit commit"),
        ({"type": "oci", "url": "https://ghcr.io/a/b", "revision": "latest"}, "a digest"),
        ({"type": "wheel", "url": "https://pypi.org/project/a", "revision": ">=1"}, "exact version"),
    ],
)
def test_what_is_not_pinned_to_a_place_has_no_stub(origin: dict[str, str] | None, why: str) -> None:
    part = drafter(origin=origin)
    assert why in not_fetchable(drafter_row(part))
    with pytest.raises(GlmserveError, match=why):
        make_stub(drafter_row(part), NEVER, TEXTS)


def test_a_listed_licence_has_an_address_where_the_publisher_gives_none() -> None:
    assert stub(license={"declared_at": "LICENSE"}).license.url == "https://spdx.org/licenses/CC-BY-NC-ND-4.0.html"
    made = make_stub(drafter_row(drafter(license={"declared_at": ""})), NEVER, {"LicenseRef-Own": None})
    assert made.license.url == "https://huggingface.co/incoai/GLM-5.3-DFlash2"
    assert made.license.texts[0].sha256 is None


def test_a_stub_that_nothing_but_delivery_asks_for_has_no_reason() -> None:
    part = component(
        "m", "weights", "MIT", delivery="fetch", origin={"type": "wheel", "url": "https://pypi.org/p", "revision": "1"}
    )
    made = make_stub(row(part), None, {"MIT": None})
    assert (made.reason, made.message, made.accept_required) == (None, "", False)
    assert read_stub(made.serialise(), "x") == made


def test_a_manifest_that_smuggles_content_in_its_lines_has_no_stub() -> None:
    for changes in ({"name": "x" * 3000}, {"attribution": {"copyright": ["x" * 3000]}}):
        with pytest.raises(GlmserveError, match="correct its manifest"):
            stub(**changes)


GOOD = json.loads(stub().serialise())


def changed(**fields: Any) -> bytes:
    return (json.dumps({**GOOD, **fields}, indent=2, sort_keys=True) + "\n").encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"\xff",
        b"[" * 99_999,
        stub().serialise() + b" ",
        stub().serialise().replace(b"{", b'{\n  "id": "other",', 1),
        json.dumps(GOOD).encode(),
        changed(schema="glmserve.fetch-stub/2"),
        changed(id="Drafter"),
        changed(bytes="AAAA"),
        changed(accept_required=1),
        changed(accept_required=None),
        changed(reason="BECAUSE"),
        changed(files=[{"path": "../x", "sha256": "0" * 64, "size": 1}]),
        changed(files=[{"path": "x", "sha256": "0" * 63, "size": 1}]),
        changed(files=[{"path": "x", "sha256": "0" * 64, "size": -1}]),
        changed(files=[{"path": "x", "sha256": "0" * 64, "size": float("nan")}]),
        changed(origin={**GOOD["origin"], "revision": "main"}),
        changed(origin={**GOOD["origin"], "url": "https://a:b@c/d"}),
        changed(origin={**GOOD["origin"], "type": "file"}),
        changed(license={**GOOD["license"], "url": "https://c/d?token=1"}),
        changed(license={**GOOD["license"], "texts": [{"id": "MIT"}]}),
        changed(attribution=["x" * 5000]),
    ],
)
def test_anything_else_is_no_stub(data: bytes) -> None:
    with pytest.raises(IntegrityError, match=r"^here") as refusal:
        read_stub(data, "here")
    assert "\n" not in str(refusal.value)


def test_a_stub_without_a_field_is_none() -> None:
    for field in GOOD:
        value = {key: item for key, item in GOOD.items() if key != field}
        with pytest.raises(IntegrityError):
            read_stub((json.dumps(value, indent=2, sort_keys=True) + "\n").encode(), "here")


def test_the_declared_expression_stands_in_the_stub_as_it_is() -> None:
    one = replace(drafter_row(drafter()), declared="MIT OR CC-BY-NC-ND-4.0", concluded="MIT")
    assert make_stub(one, None, {"MIT": None}).license.expression == "MIT OR CC-BY-NC-ND-4.0"
