"""What lies on this machine beside a manifest: licence texts, notices, files, a model card."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from glmserve.api import ConfigError
from glmserve.api.components import Ancestor, Manifest
from glmserve.api.provenance import read_origin

from .card import CardError, claimed_license
from .expressions import ABSENT, License, MalformedExpression, licenses, parse, same
from .report import Component, Finding, LicenseText, Reason, Use, Verdict
from .texts import contained, digest, identify, normalise

SHARES = frozenset(use for use in Use if use.shares)
MAX_TEXT_BYTES = 1 << 20
"""A licence text is not larger; what is, is not read."""
TEXT_NAMES = ("LICENSE", "LICENSE.txt", "LICENSE.md", "LICENCE", "COPYING")
"""What a text is called most often: these come first."""
_TEXT_NAME = re.compile(r"(un)?licen[cs]e|copying", re.IGNORECASE)
CARD = "README.md"
BLOCK = 1 << 20

Progress = Callable[[str, int, int], None]
"""Called with a file's name, the bytes hashed so far, and its size."""


def gather(
    manifest: Manifest, root: Path | None, source: str, *, distribution: str = "", progress: Progress | None = None
) -> Component:
    """The component of a manifest whose files lie in `root`, None when they are not here.

    With `progress` every file is hashed; without, sizes alone are compared.
    """
    if root is None:
        return Component(manifest, source, distribution=distribution)
    manifest, damaged = _provenance(manifest, root)
    texts, findings = _texts(manifest, root)
    findings += damaged + _files(manifest, root, progress)
    readings, claims = _card(manifest, root / CARD)
    findings += claims + _mismatch(manifest, texts)
    return Component(
        manifest,
        source,
        texts=tuple(texts),
        notices=tuple(filter(None, (_read(root / name) for name in manifest.attribution.notice_files))),
        root=root,
        readings=readings,
        findings=tuple(findings),
        distribution=distribution,
    )


def _provenance(manifest: Manifest, root: Path) -> tuple[Manifest, list[Finding]]:
    """The manifest, with the ancestors that the record beside the files adds."""
    try:
        record = read_origin(root)
    except ConfigError as error:
        message = str(error).replace(f"{root}{os.sep}", "").rstrip(".")
        return manifest, [Finding(Reason.ANCESTOR_UNRESOLVED, Verdict.UNKNOWN, message)]
    known = {ancestor.id for ancestor in manifest.derived_from} | {manifest.id}
    more = [Ancestor(id=s.id, relation=s.relation) for s in record.derived_from if s.id not in known] if record else []
    return manifest.model_copy(update={"derived_from": (*manifest.derived_from, *more)}), []


def _texts(manifest: Manifest, root: Path) -> tuple[list[LicenseText], list[Finding]]:
    texts: list[LicenseText] = []
    findings: list[Finding] = []
    for declared in manifest.license.texts:
        text = _read(root / declared.path)
        if not text:
            message = f"its licence text {declared.path} is missing, empty or not text"
            findings.append(Finding(Reason.TEXT_MISSING, Verdict.DENY, message, uses=SHARES))
            findings.append(Finding(Reason.TEXT_MISSING, Verdict.ALLOW, message))
            continue
        found = digest(text)
        if declared.sha256 is not None and found != declared.sha256:
            message = f"its licence text {declared.path} is not the one on record"
            findings.append(Finding(Reason.HASH_MISMATCH, Verdict.DENY, message))
        texts.append(LicenseText(declared.path, found, text))
    if not manifest.license.texts:
        for name in _lying_there(root):
            if text := _read(root / name):
                texts.append(LicenseText(name, digest(text), text))
            else:
                message = f"{name} lies beside it and was not read: it is a link, empty, too large or not text"
                findings.append(Finding(Reason.TEXT_MISSING, Verdict.UNKNOWN, message, uses=SHARES))
                findings.append(Finding(Reason.TEXT_MISSING, Verdict.ALLOW, message))
    return texts, findings


def _lying_there(root: Path) -> list[str]:
    """Every file of the directory that is named like a licence text, whoever declared it: one of them may restrict."""
    try:
        names = [entry.name for entry in os.scandir(root) if not entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    order = {name: place for place, name in enumerate(TEXT_NAMES)}
    return sorted(filter(_TEXT_NAME.match, names), key=lambda name: (order.get(name, len(order)), name))


def _files(manifest: Manifest, root: Path, progress: Progress | None) -> list[Finding]:
    findings = []
    for entry in manifest.files:
        path = root / entry.path
        ways = ("fetch it again", "correct the manifest when the file was changed on purpose")
        try:
            size = path.stat().st_size
            found = _sha256(path, progress) if progress is not None and size == entry.size else entry.sha256
        except OSError:
            findings.append(Finding(Reason.FILE_MISSING, Verdict.DENY, f"{entry.path} is not there", remedies=ways))
            continue
        if size != entry.size or found != entry.sha256:
            message = f"{entry.path} does not have the size and digest of the manifest"
            findings.append(Finding(Reason.HASH_MISMATCH, Verdict.DENY, message, remedies=ways))
    return findings


def _card(manifest: Manifest, card: Path) -> tuple[tuple[str, ...], list[Finding]]:
    """What the model card claims beyond what is declared, and what is wrong with it."""
    try:
        claim = claimed_license(card)
    except CardError as error:
        message = f"its model card {CARD} cannot be relied on: {error}"
        return (), [Finding(Reason.METADATA_CONFLICT, Verdict.UNKNOWN, message)]
    declared = manifest.license.expression
    if claim is None or claim.casefold() in ABSENT or claim.casefold() == declared.strip().casefold():
        return (), []
    try:
        if same(parse(claim), parse(declared)):
            return (), []
    except MalformedExpression:
        pass
    message = f"its model card claims {claim!r} and {declared or 'nothing'} is declared; the worse of both counts"
    return (claim,), [Finding(Reason.METADATA_CONFLICT, Verdict.CONDITIONS, message)]


def _mismatch(manifest: Manifest, texts: list[LicenseText]) -> list[Finding]:
    """A text that is known to be that of a licence which the expression does not name."""
    try:
        named = {license.id for license in _leaves(manifest)}
    except MalformedExpression:
        return []
    findings = []
    for text in texts:
        really = identify(text.text)
        if named and really and not (really | contained(text.text)) & named:
            message = f"{text.path} is the text of {' or '.join(sorted(really))}, and {manifest.license.expression} is "
            findings.append(Finding(Reason.TEXT_MISMATCH, Verdict.UNKNOWN, message + "declared"))
        elif named and not really and (within := contained(text.text) & named):
            message = (
                f"{text.path} has the text of {' and '.join(sorted(within))}, and more that may take some of it back"
            )
            ways = ("have a person read it, and declare a LicenseRef of its own",)
            findings.append(Finding(Reason.TEXT_MISMATCH, Verdict.UNKNOWN, message, remedies=ways))
    return findings


def _leaves(manifest: Manifest) -> Iterator[License]:
    text = manifest.license.expression
    return iter(()) if text.strip().casefold() in ABSENT else licenses(parse(text))


def _read(path: Path) -> str:
    """A text file, or "" for anything else: links out of their directory are not followed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return ""
            data = file.read(MAX_TEXT_BYTES + 1)
    except OSError:
        return ""
    return "" if len(data) > MAX_TEXT_BYTES or b"\0" in data else normalise(data)


def _sha256(path: Path, progress: Progress | None) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        while block := file.read(BLOCK):
            digest.update(block)
            if progress is not None:
                progress(path.name, file.tell(), size)
    return digest.hexdigest()
