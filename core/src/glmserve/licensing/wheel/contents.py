"""What a wheel says about its licence, the texts that bear it out, its component manifests, and weights in it."""

from __future__ import annotations

import configparser
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from packaging.metadata import InvalidMetadata, Metadata
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from glmserve.api import ConfigError
from glmserve.api.components import Manifest, parse_manifest

from ..catalogue import load_catalogue
from ..content.unpack import unsafe_name
from ..expressions import ABSENT, And, Expression, License, MalformedExpression, licenses, parse
from ..installed.claims import FoundText, compare, recognised
from ..installed.classifiers import PREFIX
from ..installed.inspection import weights_finding
from ..installed.manifests import DIRECTORY, GROUP, contradiction
from ..report import Finding, Reason, Verdict
from ..texts import digest, normalise
from .archive import OpenWheel

_LOWEST = Version("2.4")
_VENDORED = ("vendored", "snippet")


def check_contents(wheel: OpenWheel) -> Iterator[Finding]:
    """Findings on the wheel's metadata, texts, manifests and content. Raises one of UNPACK_ERRORS for a damaged zip."""
    if wheel.read(f"{wheel.info}/METADATA") is None:
        yield _finding(Reason.MALFORMED, "it has no METADATA that can be read")
        return
    yield from _metadata(wheel)
    yield from _expression(wheel)
    texts, findings = _license_files(wheel)
    yield from findings
    yield from _texts(wheel.headers.get("License-Expression"), texts)
    manifests, findings = _manifests(wheel)
    yield from findings
    yield from _weights(wheel, manifests)


def _metadata(wheel: OpenWheel) -> Iterator[Finding]:
    headers, data = wheel.headers, wheel.read(f"{wheel.info}/METADATA") or b""
    version = headers.get("Metadata-Version")
    try:
        old = Version(version) < _LOWEST
    except InvalidVersion:
        old = True
    if old:
        yield _finding(Reason.MALFORMED, f"its Metadata-Version is {version or 'missing'}, and licences need {_LOWEST}")
    try:
        Metadata.from_email(data, validate=True)
    except (ExceptionGroup, InvalidMetadata, ValueError, LookupError, TypeError) as error:
        causes = error.exceptions if isinstance(error, ExceptionGroup) else (error,)
        # A wrong expression has a finding of its own.
        others = [c for c in causes if getattr(c, "field", "") != "license-expression"]
        for cause in others[:3]:
            yield _finding(Reason.MALFORMED, f"its METADATA does not hold: {' '.join(str(cause).split())[:160]}")
    if headers.all("License"):
        yield _finding(Reason.METADATA_CONFLICT, "it has the old header License beside License-Expression")
    for label in headers.all("Classifier"):
        if label.startswith(PREFIX):
            yield _finding(Reason.METADATA_CONFLICT, f"it has the classifier {label!r} beside License-Expression")


def _expression(wheel: OpenWheel) -> Iterator[Finding]:
    said = wheel.headers.all("License-Expression")
    if len(said) != 1 or said[0].casefold() in ABSENT:
        reason = Reason.NO_LICENSE if len(said) < 2 else Reason.METADATA_CONFLICT
        yield _finding(reason, f"it has {len(said) or 'no'} License-Expression that says something, and needs one")
        return
    try:
        canonical = str(parse(said[0]))
    except MalformedExpression as error:
        yield _finding(Reason.MALFORMED_EXPRESSION, f"its License-Expression {said[0][:60]!r} is not SPDX: {error}")
        return
    if canonical != said[0]:
        message = f"its License-Expression is {said[0][:60]!r}, and canonical is {canonical[:60]!r}"
        yield _finding(Reason.MALFORMED_EXPRESSION, message)


def _license_files(wheel: OpenWheel) -> tuple[list[FoundText], list[Finding]]:
    texts: list[FoundText] = []
    findings: list[Finding] = []
    prefix = f"{wheel.info}/licenses/"
    declared = dict.fromkeys(wheel.headers.all("License-File"))
    if not declared:
        findings.append(_finding(Reason.TEXT_MISSING, "it declares no License-File", Verdict.DENY))
    for name in declared:
        if unsafe_name(name):
            findings.append(_finding(Reason.MALFORMED, f"its License-File {name[:80]!r} leaves its directory"))
            continue
        data = wheel.read(prefix + name)
        if data is None:
            message = f"its License-File {name} is not a readable file of the wheel"
            findings.append(_finding(Reason.TEXT_MISSING, message, Verdict.DENY))
            continue
        text = normalise(data)
        if not text or "\0" in text or not _is_utf8(data):
            what = "empty" if not text else "not UTF-8 text"
            findings.append(_finding(Reason.TEXT_MISSING, f"its License-File {name} is {what}", Verdict.DENY))
        else:
            texts.append(FoundText(name, text, "/" not in name))
    for name in wheel.members:
        if name.startswith(prefix) and name.removeprefix(prefix) not in declared:
            findings.append(_finding(Reason.METADATA_CONFLICT, f"{name} is there and no License-File declares it"))
    return texts, findings


def _texts(expression: str, texts: Sequence[FoundText]) -> Iterator[Finding]:
    """The texts are those of the declared licences: all of an AND, at least one of an OR, and none besides."""
    try:
        tree = parse(expression)
    except MalformedExpression:
        return
    _, findings = compare(expression, texts)
    yield from findings
    names = [PurePosixPath(text.path).name.casefold() for text in texts]
    for license in licenses(tree):
        if license.id.startswith("LicenseRef-") and not any(license.id.casefold() in name for name in names):
            message = f"no License-File is named after {license.id}, whose text nobody else has"
            yield _finding(Reason.TEXT_MISSING, message, Verdict.DENY)
    if not findings and texts:
        seen = frozenset[str]().union(*(recognised(text.text) for text in texts))
        if (missing := _without_text(tree, {id.casefold() for id in seen})) is not None:
            message = f"none of its License-Files is the text of {missing}"
            yield _finding(Reason.TEXT_MISSING, message, Verdict.DENY)


def _without_text(tree: Expression, seen: set[str]) -> License | None:
    """A licence that has to be among the recognised texts and is not. Only catalogued texts can be recognised."""
    if isinstance(tree, License):
        known = load_catalogue().text(License(tree.id)) is not None
        return tree if known and tree.id.casefold() not in seen else None
    missing = [_without_text(term, seen) for term in tree.terms]
    if isinstance(tree, And):
        return next((license for license in missing if license is not None), None)
    return missing[0] if all(missing) else None


def _manifests(wheel: OpenWheel) -> tuple[list[tuple[str, Manifest]], list[Finding]]:
    """(package directory, manifest) of all component manifests, and what is wrong with them."""
    found: list[tuple[str, Manifest]] = []
    findings: list[Finding] = []
    points = configparser.ConfigParser(delimiters=("=",), interpolation=None)
    try:
        points.read_string((wheel.read(f"{wheel.info}/entry_points.txt") or b"").decode("utf-8"))
    except (configparser.Error, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())[:100]
        return [], [_finding(Reason.MALFORMED, f"its entry_points.txt cannot be read ({reason})")]
    announced = points[GROUP].values() if GROUP in points else ()
    packages = sorted({value.strip().replace(".", "/") for value in announced})
    for package in packages:
        parent = PurePosixPath(package, DIRECTORY)
        names = sorted(n for n in wheel.members if n.endswith(".toml") and PurePosixPath(n).parent == parent)
        if not names:
            findings.append(_finding(Reason.FILE_MISSING, f"it announces manifests, and {parent} has none"))
        for name in names:
            try:
                found.append((package, parse_manifest(wheel.read(name) or b"", name)))
            except ConfigError as error:
                findings.append(_finding(Reason.MALFORMED, str(error).rstrip(".")))
    everything = [manifest for _, manifest in found]
    distribution = canonicalize_name(wheel.headers.get("Name"))
    expression = wheel.headers.get("License-Expression")
    for package, manifest in found:
        if (conflict := contradiction(manifest, everything, distribution, expression)) is not None:
            findings.append(conflict)
        findings += _bundled(wheel, package, manifest)
        findings += _notice(wheel, package, manifest, everything)
    return found, findings


def _bundled(wheel: OpenWheel, package: str, manifest: Manifest) -> Iterator[Finding]:
    """Texts and files of a component whose bytes come with the wheel are there, and are what its manifest says."""
    if manifest.delivery != "bundled":
        return
    if manifest.policy.redistribute == "never":
        message = f"{manifest.id} is in it, and its manifest says that it is never redistributed"
        yield _finding(Reason.PROJECT_POLICY, message, Verdict.DENY)
    for text in manifest.license.texts:
        data = wheel.read(f"{package}/{text.path}")
        if data is None:
            yield _finding(Reason.TEXT_MISSING, f"{text.path} of {manifest.id} is not in {package}", Verdict.DENY)
        elif text.sha256 is not None and digest(data) != text.sha256:
            message = f"{text.path} of {manifest.id} is not the text whose digest its manifest gives"
            yield _finding(Reason.HASH_MISMATCH, message, Verdict.DENY)
    for file in manifest.files:
        item = wheel.top.get(f"{package}/{file.path}")
        if item is None:
            yield _finding(Reason.FILE_MISSING, f"{file.path} of {manifest.id} is not in {package}", Verdict.DENY)
        elif (item.sha256, item.size) != (file.sha256, file.size):
            message = f"{file.path} of {manifest.id} is not what its manifest says"
            yield _finding(Reason.HASH_MISMATCH, message, Verdict.DENY)


def _notice(wheel: OpenWheel, package: str, manifest: Manifest, everything: Sequence[Manifest]) -> Iterator[Finding]:
    """Whoever vendors Apache-licensed code carries its NOTICE on; what is fetched vendors nothing in the wheel."""
    if manifest.delivery != "bundled":
        return
    by_id = {other.id: other for other in everything}
    parts = [by_id[a.id] for a in manifest.derived_from if a.relation in _VENDORED and a.id in by_id]
    apache = [part for part in parts if _is_apache(part.license.expression)]
    carried = [f"{package}/{name}" for m in (manifest, *apache) for name in m.attribution.notice_files]
    carried += [
        f"{wheel.info}/licenses/NOTICE",
        f"{wheel.info}/licenses/NOTICE.txt",
        f"{wheel.info}/licenses/NOTICE.md",
    ]
    if apache and not any(name in wheel.members for name in carried):
        message = f"{manifest.id} has code of {apache[0].id} ({apache[0].license.expression}), and no NOTICE is there"
        yield _finding(Reason.NOTICE_MISSING, message, Verdict.DENY)


def _is_apache(expression: str) -> bool:
    try:
        return any(license.id == "Apache-2.0" for license in licenses(parse(expression)))
    except MalformedExpression:
        return False


def _weights(wheel: OpenWheel, manifests: Sequence[tuple[str, Manifest]]) -> Iterator[Finding]:
    owned = {
        (f"{package}/{file.path}", file.sha256)
        for package, manifest in manifests
        if manifest.delivery == "bundled" and manifest.kind != "code"
        for file in manifest.files
    }
    answered = {name for name, item in wheel.top.items() if (name, item.sha256) in owned}
    places: list[tuple[str, str]] = []
    for item in wheel.items:
        where = " > ".join(item.names[1:])
        if item.problem:
            yield _finding(Reason.MALFORMED, f"{where}: {item.problem}")
        if item.names[1] in answered:
            continue
        if item.kind is not None:
            places.append((where, item.kind))
        if item.warning:
            yield _finding(Reason.WEIGHTS_IN_WHEEL, f"{where} may hold weights: {item.warning}", Verdict.CONDITIONS)
    if places:
        yield weights_finding(places)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _finding(reason: Reason, message: str, verdict: Verdict = Verdict.UNKNOWN) -> Finding:
    return Finding(reason, verdict, message)
