"""Component manifests of installed distributions, found without importing a line of them.

A distribution names a package of its own in the entry-point group `glmserve.components`; the manifests are the files
components/*.toml in that package, and their paths are relative to the package.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.machinery import PathFinder
from pathlib import Path

from glmserve.api import ConfigError
from glmserve.api.components import MAX_MANIFEST_BYTES, Manifest, parse_manifest

from ..expressions import MalformedExpression, licenses, parse, same
from ..report import Finding, Reason, Verdict
from .claims import compare
from .declared import declared
from .distinfo import Installed, installed, normalised, read_regular
from .inspection import inspect
from .license_files import edited, license_files
from .record import digest_of

GROUP = "glmserve.components"
DIRECTORY = "components"
_PACKAGE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)


@dataclass(frozen=True)
class FoundManifest:
    """One manifest, and where it was found."""

    manifest: Manifest
    source: str
    """For people: "glmserve_x/components/x.toml of glmserve-x 0.1"."""
    distribution: str
    """Normalised name of the distribution that carries it."""
    version: str
    root: Path
    """The package's directory: paths in the manifest of a bundled component are relative to it."""
    readings: tuple[str, ...] = ()
    """Further licence expressions, as in `Component`."""
    findings: tuple[Finding, ...] = ()
    """What contradicts it. The manifest of a distribution's own code has the findings on the distribution, too."""


def manifests(paths: Sequence[str] | None = None, *, verify: bool = False) -> tuple[FoundManifest, ...]:
    """The manifests of all distributions on `paths`, sys.path by default, sorted by id.

    `verify` reads every file of these distributions. Raises ConfigError, naming the distribution, for an entry point
    that leads nowhere, for a manifest that does not hold, and for an id that two distributions provide.
    """
    found: dict[str, FoundManifest] = {}
    for one in installed(paths):
        for manifest in _examined(one, manifests_of(one, paths), verify):
            other = found.setdefault(manifest.manifest.id, manifest)
            if other is not manifest:
                raise ConfigError(
                    f"The component {manifest.manifest.id} is described by {other.source} and by {manifest.source}; "
                    "uninstall one of the two distributions."
                )
    return tuple(found[id] for id in sorted(found))


def manifests_of(one: Installed, paths: Sequence[str] | None) -> tuple[FoundManifest, ...]:
    """The manifests of one distribution. Raises ConfigError."""
    if GROUP not in one.entry_points:
        return ()
    try:
        values = sorted({point.value.strip() for point in one.dist.entry_points if point.group == GROUP})
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        raise ConfigError(f"The entry points of {one.name} cannot be read ({error}); install it anew.") from None
    found: list[tuple[Path, Path, str, Manifest]] = []
    for value in values:
        files = [(p, file) for p in _directories(one, value, paths) for file in sorted((p / DIRECTORY).glob("*.toml"))]
        if not files:
            raise ConfigError(
                f"{one.name} announces component manifests in {value!r}, and there is no {DIRECTORY}/*.toml there; "
                "install it anew or uninstall it."
            )
        for package, file in files:
            source = f"{value.replace('.', '/')}/{DIRECTORY}/{file.name} of {one.name} {one.version}".rstrip()
            found.append((package, file, source, _read(file, source)))
    all_of_it = [manifest for *_, manifest in found]
    expression = declared(one.headers).expression
    return tuple(
        FoundManifest(
            manifest,
            source,
            one.key,
            one.version,
            package,
            (),
            tuple(filter(None, (contradiction(manifest, all_of_it, one.key, expression), _changed(one, file)))),
        )
        for package, file, source, manifest in found
    )


def contradiction(manifest: Manifest, others: Iterable[Manifest], distribution: str, expression: str) -> Finding | None:
    """METADATA_CONFLICT when the metadata declares another licence than a manifest of what the distribution holds.

    `others` are all manifests of the distribution. Its own code has to have exactly the licence of the metadata; what
    else it bundles, vendored code or weights, has to be covered by it.
    """
    if manifest.delivery != "bundled":
        return None
    own = _is_own(manifest, others, distribution)
    said = manifest.license.expression
    try:
        mine, whole = parse(said), parse(expression)
    except MalformedExpression:
        agree = said == expression
    else:
        agree = same(mine, whole) if own else {x.key for x in licenses(mine)} <= {x.key for x in licenses(whole)}
    if agree:
        return None
    message = f"its manifest declares {said or 'no licence'}, and the metadata of {distribution} {expression or 'none'}"
    return Finding(
        Reason.METADATA_CONFLICT, Verdict.UNKNOWN, message, remedies=("make License-Expression and the manifest agree",)
    )


def _is_own(manifest: Manifest, others: Iterable[Manifest], distribution: str) -> bool:
    """Whether it describes the distribution's own code: it has its name, or there is no other code in it."""
    code = [m for m in others if m.kind == "code" and m.delivery == "bundled"]
    return manifest in code and (len(code) == 1 or normalised(manifest.id) == normalised(distribution))


def _examined(one: Installed, found: Sequence[FoundManifest], verify: bool) -> Iterator[FoundManifest]:
    """The same, the manifest of the distribution's own code with what the distribution itself shows."""
    everything = [f.manifest for f in found]
    for manifest in found:
        if not _is_own(manifest.manifest, everything, one.key):
            yield manifest
            continue
        files = license_files(one)
        readings, mismatches = compare(manifest.manifest.license.expression, (*files.texts, *files.notices))
        shown = inspect(one, owned_weights(found, one.root), verify=verify)
        findings = (*manifest.findings, *files.findings, *mismatches, *shown)
        yield replace(manifest, readings=readings, findings=tuple(dict.fromkeys(findings)))


def owned_weights(found: Iterable[FoundManifest], root: Path) -> dict[str, str]:
    """Path relative to the installation -> sha256 hex, of all files of bundled components that are not code."""
    owned: dict[str, str] = {}
    for one in found:
        package, site = one.root.resolve(), root.resolve()
        if one.manifest.delivery == "bundled" and one.manifest.kind != "code" and package.is_relative_to(site):
            inside = package.relative_to(site)
            owned.update({(inside / file.path).as_posix(): file.sha256 for file in one.manifest.files})
    return owned


def _directories(one: Installed, value: str, paths: Sequence[str] | None) -> list[Path]:
    """Where the package of an entry point lies. Only the first name is looked up: finding a deeper one imports it."""
    if not _PACKAGE.fullmatch(value):
        raise ConfigError(f"{one.name} announces component manifests in {value!r}, which is no package name.")
    top, *rest = value.split(".")
    try:
        spec = importlib.util.find_spec(top) if paths is None else PathFinder.find_spec(top, [str(p) for p in paths])
    except (ImportError, ValueError, AttributeError):
        spec = None
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    return [Path(place, *rest) for place in places]


def _read(file: Path, source: str) -> Manifest:
    data = read_regular(file, MAX_MANIFEST_BYTES)
    if data is None:
        raise ConfigError(f"{source}: this is no readable file of at most {MAX_MANIFEST_BYTES} bytes.")
    return parse_manifest(data, source)


def _changed(one: Installed, file: Path) -> Finding | None:
    """HASH_MISMATCH for a manifest that is not the one that was installed."""
    if not file.is_relative_to(one.root):
        return None  # of a working copy
    path = file.relative_to(one.root).as_posix()
    entry = one.entries.get(path)
    if entry is None or not entry.digest:
        return None
    with file.open("rb") as opened:
        return None if digest_of(entry.algorithm, opened) == entry.digest else edited(path)
