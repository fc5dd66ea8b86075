"""A hundred and more broken manifests and policies: each is a finding or a refusal, none a traceback, none a pass.

Broken wheels and archives have files of their own, test_wheel.py and test_bundle_verify.py.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from glmserve.api import GlmserveError
from glmserve.api.components import parse_manifest
from glmserve.licensing.policy import load_policy
from glmserve.licensing.report import Use, Verdict

from .parts import judged

DIGEST = "ab" * 32
MANIFEST: dict[str, Any] = {
    "schema": "glmserve.component/1",
    "id": "part",
    "name": "Part",
    "kind": "weights",
    "version": "1",
    "delivery": "fetch",
    "origin": {"type": "hf", "url": "https://huggingface.co/x/y", "revision": "4" * 40, "publisher": "x"},
    "license": {"expression": "MIT", "declared_at": "a card", "texts": [{"path": "LICENSE", "sha256": DIGEST}]},
    "attribution": {"copyright": ["Copyright (c) 2026 X"], "notice_files": ["NOTICE"]},
    "files": [{"path": "w.safetensors", "sha256": DIGEST, "size": 3}],
    "policy": {"redistribute": "never", "accept_before_fetch": True, "reason": "ours"},
    "to_confirm": ["this"],
}
POLICY: dict[str, Any] = {
    "service": False,
    "facts": {
        "purpose": "noncommercial",
        "maas_business": False,
        "zai_security_review": {"document": "a", "sha256": DIGEST},
    },
    "policy": {"allow": ["MIT", "@gated"], "deny": ["@network-copyleft"], "by_kind": {"weights": {"allow": ["MIT"]}}},
    "clarify": [{"dist": "x", "version": "==1", "expression": "MIT", "texts": [{"path": "LICENSE", "sha256": DIGEST}]}],
    "exceptions": [
        {
            "component": "part",
            "uses": ["run-local"],
            "licenses": ["MIT"],
            "reason": "r",
            "approved_by": "a",
            "expires": "2027-01-01",
        }
    ],
    "grants": [
        {
            "component": "part",
            "revisions": ["4" * 40],
            "uses": ["run-local"],
            "licensor": "x",
            "document": "d",
            "sha256": DIGEST,
            "expires": "2027-01-01",
            "transferable": False,
        }
    ],
}


def toml(value: Any) -> str:
    """A value as TOML writes it inline."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(key)} = {toml(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, float):
        return "nan"
    return json.dumps(value)


def document(table: Mapping[str, Any]) -> str:
    return "".join(f"{key} = {toml(value)}\n" for key, value in table.items())


def places(table: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value, and of every table inside."""
    items = table.items() if isinstance(table, Mapping) else enumerate(table) if isinstance(table, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from places(value, (*path, key))


def at(table: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        table = table[key]
    return table


def wrongly_typed(table: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for path in places(table):
        changed = copy.deepcopy(table)
        value = at(changed, path)
        # Numbers, because no key wants one but sizes, and those want no nan.
        at(changed, path[:-1])[path[-1]] = float("nan") if isinstance(value, int) and value is not True else 17
        yield f"{'.'.join(map(str, path))} of a wrong type", document(changed)


def unknown_keys(table: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for path in [(), *(path for path in places(table) if isinstance(at(table, path), dict))]:
        if path in (("policy", "by_kind"), ("facts",)):
            continue  # their names are checked against the catalogue: test_acceptance_commands.py
        changed = copy.deepcopy(table)
        at(changed, path)["permissions"] = "all"
        yield f"an unknown key in {'.'.join(map(str, path)) or 'the top'}", document(changed)


def texts_cut(table: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Cut within a line, and with a byte that no text has."""
    text = document(table)
    chance = random.Random(5)
    for _ in range(15):
        end = chance.randrange(1, len(text) - 1)
        while text[end - 1 : end + 1].count("\n") or end < len(document({"schema": ""})):
            end = chance.randrange(1, len(text) - 1)
        yield f"cut at {end}", text[:end]
        yield f"a control character at {end}", text[:end] + "\x01" + text[end:]
    yield "twice", text + text
    yield "a byte order mark in the middle", text.replace("\n", "\n\ufeff", 1)


MANIFEST_VALUES = [
    (("schema",), "glmserve.component/2"),
    (("id",), "Part"),
    (("id",), "../part"),
    (("id",), "a" * 65),
    (("name",), ""),
    (("kind",), "weight"),
    (("delivery",), "free"),
    (("origin", "type"), "ftp"),
    (("license", "texts", 0, "path"), "../../etc/passwd"),
    (("license", "texts", 0, "path"), "/etc/passwd"),
    (("license", "texts", 0, "sha256"), "ab"),
    (("license", "texts", 0, "sha256"), "AB" * 32),
    (("files", 0, "path"), "a\\b"),
    (("files", 0, "size"), -1),
    (("attribution", "notice_files", 0), ".."),
    (("policy", "redistribute"), "always"),
    (("policy", "accept_before_fetch"), "no"),
]


def manifests() -> Iterator[tuple[str, str]]:
    yield from wrongly_typed(MANIFEST)
    yield from unknown_keys(MANIFEST)
    yield from texts_cut(MANIFEST)
    for key in ("schema", "id", "name", "kind", "delivery"):
        yield f"without {key}", document({k: v for k, v in MANIFEST.items() if k != key})
    for path, value in MANIFEST_VALUES:
        changed = copy.deepcopy(MANIFEST)
        at(changed, path[:-1])[path[-1]] = value
        yield f"{path} = {value!r}", document(changed)


def policies() -> Iterator[tuple[str, str]]:
    yield from wrongly_typed(POLICY)
    yield from unknown_keys(POLICY)
    yield from texts_cut(POLICY)


BROKEN_MANIFESTS, BROKEN_POLICIES = list(manifests()), list(policies())


def test_the_unbroken_ones_hold_and_there_are_a_hundred_broken_ones(tmp_path: Path) -> None:
    assert parse_manifest(document(MANIFEST).encode(), "here").id == "part"
    (tmp_path / "policy.toml").write_text(document(POLICY))
    assert load_policy(tmp_path / "policy.toml").facts.purpose == "noncommercial"
    assert len(BROKEN_MANIFESTS) > 80
    assert len(BROKEN_POLICIES) > 80


@pytest.mark.parametrize("text", [text for _, text in BROKEN_MANIFESTS], ids=[name for name, _ in BROKEN_MANIFESTS])
def test_a_broken_manifest_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(GlmserveError) as refused:
        parse_manifest(text.encode(), "part.toml")
    assert refused.value.exit_code == 2
    assert str(refused.value).startswith("part.toml: ")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", [text for _, text in BROKEN_POLICIES], ids=[name for name, _ in BROKEN_POLICIES])
def test_a_broken_policy_is_refused_in_one_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(text)
    with pytest.raises(GlmserveError) as refused:
        load_policy(path)
    assert refused.value.exit_code == 2
    assert "policy.toml" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("made_from", [["part"], ["nobody"]])
def test_ancestors_that_are_no_ancestors(made_from: list[str]) -> None:
    table = {**MANIFEST, "derived_from": [{"id": id, "relation": "quantize"} for id in made_from]}
    from glmserve.licensing.report import Component

    component = Component(parse_manifest(document(table).encode(), "here"), "here")
    if made_from == ["part"]:
        with pytest.raises(GlmserveError, match="part from part"):
            judged([component])
    else:
        assert judged([component]).verdicts[Use.RUN_LOCAL] is Verdict.UNKNOWN


def test_manifests_that_are_made_from_each_other_are_refused() -> None:
    from .parts import part

    parts = [part("a", "MIT", made_from=[("b", "format")]), part("b", "MIT", made_from=[("a", "format")])]
    with pytest.raises(GlmserveError, match="a from b from a"):
        judged(parts)


def test_a_manifest_of_a_megabyte_is_not_read() -> None:
    with pytest.raises(GlmserveError, match="bytes"):
        parse_manifest(b"#" * ((1 << 20) + 1), "here")


@pytest.mark.parametrize(
    "expression",
    [
        *("MIT\0", "MIT \u202e OR GPL-3.0-only", "\u041cIT", "()", "AND", "MIT WITH MIT", "389-exception WITH MIT"),
        *("LicenseRef-", "LicenseRef-a_b", "DocumentRef-x:LicenseRef-y", "MIT OR OR MIT", "(" * 5000, "\ud800"),
    ],
)
def test_expressions_that_are_none_are_unknown(expression: str) -> None:
    from .parts import part

    report = judged([part("x", expression)])
    assert report.verdicts[Use.RUN_LOCAL] is Verdict.UNKNOWN
