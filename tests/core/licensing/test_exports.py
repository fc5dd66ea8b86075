"""Addresses and names that other people's tools look things up by."""

from __future__ import annotations

from typing import Any

import pytest
from glmserve.licensing.outputs.exports import git_location, left_out, package_url, serialise, web_url
from hypothesis import given
from hypothesis import strategies as st
from packageurl import PackageURL

from .reports import SHARES, component, glm_weights, p1, report, row

COMMIT = "0123456789abcdef0123456789abcdef01234567"
DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        (("hf", "https://huggingface.co/Org/Repo", COMMIT), f"pkg:huggingface/Org/Repo@{COMMIT}"),
        (("hf", "https://huggingface.co/gpt2/", ""), "pkg:huggingface/gpt2"),
        (
            ("hf", "https://hub.example.org/a/b", COMMIT),
            f"pkg:huggingface/a/b@{COMMIT}?repository_url=https://hub.example.org",
        ),
        (("hf", "https://huggingface.co/datasets/a/b", COMMIT), None),
        (("hf", "https://huggingface.co/a/b%2f", COMMIT), None),
        (("hf", "https://huggingface.co/a/%2e%2e", COMMIT), None),
        (("hf", "https://huggingface.co/a/%62", ""), "pkg:huggingface/a/b"),
        (("git", "https://github.com/Org/Repo.git", COMMIT), f"pkg:github/org/repo@{COMMIT}"),
        (("git", "https://git.example.org/a/b", COMMIT), None),
        (
            ("oci", "docker.io/nvidia/cuda:13.0-base", DIGEST),
            f"pkg:oci/cuda@{DIGEST}?repository_url=docker.io/nvidia/cuda",
        ),
        (("oci", "docker.io/nvidia/cuda", "latest"), None),
        (("file", "https://example.org/x.tar", ""), None),
        (("wheel", "", "1.0+cu130"), "pkg:pypi/my-dist.x@1.0%2Bcu130"),
        (("wheel", "", " "), "pkg:pypi/my-dist.x"),
    ],
)
def test_a_place_of_a_known_type_has_a_package_url(origin: tuple[str, str, str], expected: str | None) -> None:
    kind, url, revision = origin
    part = component("x", "code", origin={"type": kind, "url": url, "revision": revision}, distribution="My_Dist.x")
    assert package_url(part) == expected
    if expected:
        assert PackageURL.from_string(expected).to_string() == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"distribution": "glmserve-x", "version": "0.1"}, "pkg:pypi/glmserve-x@0.1"),
        ({"version": "0.1"}, None),
        ({"distribution": "not a name"}, None),
    ],
)
def test_without_an_origin_only_a_distribution_has_one(changes: dict[str, Any], expected: str | None) -> None:
    assert package_url(component("x", "code", **changes)) == expected


@pytest.mark.parametrize("url", ["https://a.org", "http://a-b.co.uk:8080/c/d%20e?f=g&h", "https://a.org/~x/(y)"])
def test_a_plain_address_is_one(url: str) -> None:
    assert web_url(url) == url


@pytest.mark.parametrize(
    "url",
    [
        *(
            "",
            "LICENSE",
            "file:///etc/passwd",
            "javascript:alert(1)",
            "https://",
            "https://localhost/x",
            "https://[::1",
        ),
        *("https://a b.org", "https://a.org/\n", "https://a.org/%zz", 'https://a.org/"', "https://user:secret@a.org/"),
        *("https://a.org/\u00e9", "ftp://a.org/x", "https://-a.org"),
    ],
)
def test_anything_else_is_no_address(url: str) -> None:
    assert web_url(url) is None


def test_a_commit_is_part_of_the_location_and_a_branch_is_not_one() -> None:
    for url, revision, expected in (
        ("https://a.org/b/", COMMIT, f"git+https://a.org/b@{COMMIT}"),
        ("https://a.org/b", "main", None),
        ("https://a.org/b?c", COMMIT, None),
    ):
        origin = component("x", "code", origin={"type": "git", "url": url, "revision": revision}).manifest.origin
        assert origin is not None
        assert git_location(origin) == expected


def test_what_users_fetch_is_left_out_unless_a_share_counts_it() -> None:
    assert left_out(p1()) == {"glm-5.3", "glm-5.3-tokenizer", "drafter-glm53-dflash2"}
    assert left_out(report([row(glm_weights())])) == set()
    assert left_out(report([row(glm_weights(), uncounted=SHARES)])) == {"glm-5.3"}
    assert left_out(p1(), ["glmserve"]) == {"glmserve"}


@given(st.dictionaries(st.text(), st.integers()))
def test_equal_contents_are_equal_bytes(document: dict[str, int]) -> None:
    assert serialise(document) == serialise(dict(reversed(document.items())))
    assert serialise(document).isascii()
