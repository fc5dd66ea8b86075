"""Licence texts: one spelling of a file for digests, and which licences a text is.

A digest answers whether two files say the same to the letter. Recognition has to look through copyright lines, names,
list marks and layout, and yet must not take "MIT with one more condition" for MIT: see `wording`.
"""

from __future__ import annotations

import hashlib
import tomllib
import unicodedata
from functools import lru_cache
from typing import Annotated

import glmserve_licenses
from pydantic import BaseModel, ConfigDict, Field

from .wording import Body, cut, leftover, locate, restricts, words

MAX_CHARACTERS = 1 << 20
"""Longer files are not recognised: the longest licence text has some 40 thousand characters."""


class _Fingerprint(BaseModel):
    """How one text of the catalogue is recognised."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ids: tuple[str, ...] = Field(min_length=1)
    text: str
    begins: Annotated[str, Field(min_length=1)]
    ends: Annotated[str, Field(min_length=1)]
    """The first and the last words of what makes it this licence; titles and appendices lie outside."""
    adds_to: str = ""
    """Of an exception: the licence that has to stand beside it."""


def normalise(data: bytes | str) -> str:
    """The text with nothing left of byte order marks, line ends, form feeds, trailing space and blank ends.

    Bytes are UTF-8, or UTF-16 with a byte order mark, or else taken as Latin-1; no input is an error.
    """
    text = data if isinstance(data, str) else _decoded(data)
    text = unicodedata.normalize("NFC", text.replace("\ufeff", "").replace("\f", ""))
    lines = [line.rstrip() for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n")]
    body = "\n".join(lines).strip("\n")
    return f"{body}\n" if body else ""


def digest(text: bytes | str) -> str:
    """sha256 hex of the normalised text."""
    return hashlib.sha256(normalise(text).encode("utf-8", "surrogatepass")).hexdigest()


def identify(text: str) -> frozenset[str]:
    """The catalogued licences that the text, taken as a whole, consists of; empty when it says anything else as well.

    Texts that several identifiers share, such as -only and -or-later, give all of them.
    """
    found = _search(text)
    return found.ids if found is not None and found.whole else frozenset()


def contained(text: str) -> frozenset[str]:
    """The catalogued licences whose wording stands complete somewhere in the text, whatever stands around it."""
    found = _search(text)
    return found.ids if found is not None else frozenset()


class _Found(BaseModel):
    model_config = ConfigDict(frozen=True)

    ids: frozenset[str]
    whole: bool


@lru_cache(maxsize=256)
def _search(text: str) -> _Found | None:
    """The result for a text; None for what cannot be a licence text."""
    if len(text) > MAX_CHARACTERS or "\0" in text:
        return None
    said = words(text)
    joined = f" {' '.join(said)} "
    places: list[tuple[int, int]] = []
    hits: list[tuple[_Fingerprint, Body]] = []
    for fingerprint, body in _fingerprints():
        spans = locate(body, said, joined)
        if spans:
            hits.append((fingerprint, body))
            places += spans
    ids = {id for fingerprint, _ in hits if not fingerprint.adds_to for id in fingerprint.ids}
    ids |= {id for fingerprint, _ in hits if fingerprint.adds_to in ids for id in fingerprint.ids}
    rest = leftover(said, places, [body for _, body in hits])
    return _Found(ids=frozenset(ids), whole=bool(ids) and not restricts(rest))


@lru_cache(maxsize=1)
def _fingerprints() -> tuple[tuple[_Fingerprint, Body], ...]:
    rows = tomllib.loads(glmserve_licenses.FINGERPRINTS.read_text("utf-8"))["fingerprint"]
    return tuple((row, _body(row)) for row in map(_Fingerprint.model_validate, rows))


def _body(row: _Fingerprint) -> Body:
    text = normalise((glmserve_licenses.TEXTS / row.text).read_bytes())
    return cut(words(text), words(row.begins), words(row.ends))


def _decoded(data: bytes) -> str:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("latin-1")
