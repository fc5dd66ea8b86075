"""The Python distributions of an environment as components: declared licence, texts, and whether all of it holds.

Nothing of an audited distribution is imported, and nothing goes over the network.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence

from packaging.requirements import InvalidRequirement, Requirement

from glmserve.api import ConfigError
from glmserve.api.components import Manifest

from ..policy import Clarification
from ..report import Component, Finding, Reason, Verdict
from .claims import compare, recognised
from .clarify import Clarifications, shipped_clarifications
from .declared import Declared, declared
from .distinfo import Installed, installed, normalised
from .inspection import inspect
from .license_files import LicenseFiles, license_files
from .manifests import manifests_of, owned_weights

_SETTLED = frozenset({Reason.METADATA_CONFLICT, Reason.TEXT_MISMATCH, Reason.NO_LICENSE})
"""What a clarification answers."""


def distributions(
    paths: Sequence[str] | None = None,
    clarify: Sequence[Clarification] = (),
    skip: Iterable[str] = (),
    *,
    verify: bool = False,
) -> tuple[Component, ...]:
    """Every distribution on `paths`, sys.path by default, but those named in `skip`; sorted by name.

    `clarify` are the user's; those that this project ships stand behind them, for distributions whose metadata declares
    nothing. `verify` reads every file, which takes as long as hashing the environment. Raises ConfigError for a
    clarification that cannot be meant; whatever is wrong with a distribution is a finding.
    """
    theirs, ours = Clarifications(clarify), Clarifications(shipped_clarifications())
    skipped = {normalised(name) for name in skip}
    found = sorted((one for one in installed(paths) if one.key not in skipped), key=lambda one: one.key)
    return tuple(_component(one, theirs, ours, paths, verify) for one in found)


def closure(roots: Iterable[str], paths: Sequence[str] | None = None) -> frozenset[str]:
    """Normalised names of the installed distributions that `roots` need, themselves included.

    A root may name extras, as in "uvicorn[standard]". Markers are those of the running interpreter.
    """
    by_name = {one.key: one for one in installed(paths)}
    todo = [pair for root in roots for pair in _needed(root, "")]
    seen: set[tuple[str, str]] = set()
    while todo:
        name, extra = todo.pop()
        if name in by_name and (name, extra) not in seen:
            seen.add((name, extra))
            todo += [pair for line in by_name[name].requires for pair in _needed(line, extra)]
    return frozenset(name for name, _ in seen)


def _needed(line: str, extra: str) -> Iterator[tuple[str, str]]:
    """(name, extra) pairs that a requirement of something that was itself asked for with `extra` adds."""
    try:
        requirement = Requirement(line)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            return
    except (InvalidRequirement, ValueError, LookupError, TypeError):
        # Older tools wrote lines that no longer parse; what they name is needed all the same.
        if found := re.match(r"[A-Za-z0-9][\w.-]*", line.strip()):
            yield normalised(found[0]), ""
        return
    yield from ((normalised(requirement.name), asked) for asked in ("", *sorted(requirement.extras)))


def _component(
    one: Installed, theirs: Clarifications, ours: Clarifications, paths: Sequence[str] | None, verify: bool
) -> Component:
    said, files = declared(one.headers), license_files(one)
    readings, findings = said.readings, [*said.findings, *files.findings]
    clarified = theirs.find(one.key, one.version, files.digests)
    by = "clarified by the user" if clarified.expression else ""
    if not clarified.expression and not clarified.findings and not said.expression:
        clarified = ours.find(one.key, one.version, files.digests)
        by = "clarified by the glmserve project" if clarified.expression else ""
    expression = clarified.expression or said.expression
    if by:
        readings, findings = (), [f for f in findings if f.code not in _SETTLED]
    elif said.expression:
        more, mismatches = compare(said.expression, (*files.texts, *files.notices))
        readings, findings = readings + more, [*findings, *mismatches]
    else:
        findings.append(_undeclared(one, said, files))
    findings += clarified.findings
    findings += inspect(one, _owned(one, paths), verify=verify)
    return Component(
        manifest=_manifest(one, expression, by or (f"METADATA, {said.header}" if said.header else ""), files),
        source=f"the installed distribution {one.name} {one.version}".rstrip(),
        texts=files.digests,
        notices=tuple(notice.text for notice in files.notices),
        root=one.root,
        readings=readings,
        findings=tuple(findings),
        environment=True,
        distribution=one.key,
    )


def _undeclared(one: Installed, said: Declared, files: LicenseFiles) -> Finding:
    """Why there is no licence, with the clarification to record. The verdict on none is the audit's."""
    message = "its metadata declares no SPDX licence" + (f", but {said.said}" if said.said else "")
    ways = ["ask its publisher"]
    texts = [text for text in files.texts if text.main]
    ids = sorted({id for text in texts for id in recognised(text.text)})
    if ids:
        message += f"; its text reads as {' and '.join(ids)}"
    if texts:
        pins = ", ".join(
            f'{{ path = "{t.path.partition("/")[2]}", sha256 = "{t.sha256}" }}'
            for t in files.digests
            if t.path in {text.path for text in texts}
        )
        ways.insert(
            0, f'read it and record [[licenses.clarify]] dist = "{one.key}", expression = "...", texts = [{pins}]'
        )
    return Finding(Reason.NO_LICENSE, Verdict.ALLOW, message, remedies=tuple(ways))


def _owned(one: Installed, paths: Sequence[str] | None) -> dict[str, str]:
    try:
        return owned_weights(manifests_of(one, paths), one.root)
    except ConfigError:
        return {}  # `manifests` reports it; weights without a manifest that holds are nobody's


def _manifest(one: Installed, expression: str, declared_at: str, files: LicenseFiles) -> Manifest:
    return Manifest.model_validate(
        {
            "schema": "glmserve.component/1",
            "id": _id(one.key),
            "name": one.name[:200],
            "kind": "native-lib" if one.key.startswith("nvidia-") else "code",
            "version": one.version,
            "delivery": "bundled",
            "origin": {"type": "wheel", "revision": one.version},
            "license": {
                "expression": expression,
                "declared_at": declared_at,
                "texts": [{"path": text.path, "sha256": text.sha256} for text in files.digests],
            },
        }
    )


def _id(key: str) -> str:
    """An id of the manifest's pattern; a name that does not fit is told apart by a digest."""
    plain = re.sub(r"[^a-z0-9._-]", "-", key)
    if plain == key and len(key) <= 61:
        return f"py-{key}"
    return f"py-{plain[:50]}-{hashlib.sha256(key.encode('utf-8', 'replace')).hexdigest()[:8]}"
