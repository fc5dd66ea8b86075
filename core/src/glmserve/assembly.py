"""What a profile assembles: its components, where they lie, and the audit of all of them.

No plugin is imported here: every installed plugin counts, whichever providers the profile names, because a run loads
them all.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from importlib.metadata import version
from pathlib import Path

from glmserve.api import ConfigError, GlmserveError
from glmserve.api.components import SCHEMA, LicenseDeclaration, Manifest, Origin
from glmserve.licensing.acceptance import Ledger, default_file, read_ledger
from glmserve.licensing.audit import Question, audit
from glmserve.licensing.catalogue import Catalogue, load_catalogue
from glmserve.licensing.evidence import Progress, gather
from glmserve.licensing.installed.distinfo import read_regular
from glmserve.licensing.installed.distributions import closure, distributions
from glmserve.licensing.installed.manifests import FoundManifest, manifests
from glmserve.licensing.pins import unpinned
from glmserve.licensing.policy import LicensesSection, OrganisationPolicy, anchored, joined
from glmserve.licensing.report import Component, Report
from glmserve.nearest import nearest
from glmserve.plugins import PROJECT, selected_distributions
from glmserve.profiles import Profile
from glmserve.store.pull import locate
from glmserve.store.sources import HubSource, PackageSource, PathSource, PypiSource, parse_source

CODE = ("glmserve", "glmserve-licenses")
"""The distributions that are part of every assembly; the rest of its code are the selected plugins."""
HUB = "https://huggingface.co/"
MAX_PLUGIN_BYTES = 1 << 20
"""A plugin of one file is smaller; what is larger has no licence that was read."""
_SPDX_TAG = re.compile(r"^[ \t#]*SPDX-License-Identifier:[ \t]*([^\r\n]*)", re.MULTILINE)
DRAFT_WITHOUT_PARTS = ("none", "ngram", "mtp")
"""Drafters that bring nothing of their own."""


@dataclass(frozen=True)
class Assembly:
    """The parts of a profile, and those that they were made from."""

    profile: str
    components: tuple[Component, ...]
    ancestors: tuple[Component, ...]
    section: LicensesSection
    drafters: tuple[str, ...] = ()
    """Other drafters than the profile's, as ways out of its terms."""


def catalogue_of(section: LicensesSection) -> Catalogue:
    """The reviewed terms, with those of the user's own that the section names."""
    return load_catalogue([Path(file) for file in section.catalogue])


def assemble(
    profile: Profile,
    *,
    drafter: str | None = None,
    policy: LicensesSection | None = None,
    environment: bool = False,
    python_paths: Sequence[str] | None = None,
    progress: Progress | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Assembly:
    """Find the components of a profile.

    `drafter` replaces the profile's. `policy` adds to its section [licenses]. `environment` takes in every installed
    distribution, and not only what the assembly needs; `python_paths` are those of another interpreter. With `progress`
    every file is hashed. Raises ConfigError for a component that no manifest describes.
    """
    section = anchored(profile.licenses, profile.directory)
    if policy is not None:
        section = joined(section, policy)
    found = {f.manifest.id: f for f in manifests(python_paths, verify=progress is not None)}
    code = {*CODE, *selected_distributions(environ)}
    shipped = [f for f in found.values() if f.manifest.kind == "code" and f.distribution in code]
    components = [_gathered(f, f.root, progress) for f in shipped]
    components += _model(profile, found, progress)
    components += [_drafter_part(found, id, progress) for id in _drafter_parts(profile, drafter)]
    components += [_single_file(path) for path in profile.plugin_files]
    described = {f.distribution for f in shipped}
    installed = distributions(python_paths, section.clarify, described, verify=progress is not None)
    wanted = None if environment else closure(code, python_paths)
    for part in installed:
        if part.distribution in code:
            # A plugin without a manifest of its own is judged by its metadata.
            components.append(replace(part, environment=False))
        elif wanted is None or part.distribution in wanted:
            components.append(part)
    ids = {component.id for component in components}
    ancestors = tuple(_gathered(f, None, None) for f in found.values() if f.manifest.id not in ids)
    return Assembly(profile.profile.name, tuple(components), ancestors, section, _other_drafters(profile))


def audit_profile(
    assembly: Assembly,
    question: Question,
    *,
    policies: Sequence[OrganisationPolicy] = (),
    ledger: Ledger | None = None,
    today: date | None = None,
) -> Report:
    """Judge an assembly. The user's own acceptances are read unless `ledger` is given."""
    return audit(
        assembly.profile,
        assembly.components,
        assembly.section,
        catalogue_of(assembly.section),
        question,
        ancestors=assembly.ancestors,
        policies=policies,
        drafters=assembly.drafters,
        ledger=read_ledger(default_file()) if ledger is None else ledger,
        today=today,
        versions={"glmserve": version(PROJECT)},
    )


def _other_drafters(profile: Profile) -> tuple[str, ...]:
    others = dict.fromkeys(filter(None, (profile.drafter.fallback, "none")))
    note = {"mtp": " (the model's own layer, under the model's licence)"}
    return tuple(f"--drafter {name}{note.get(name, '')}" for name in others if name != profile.drafter.name)


def _gathered(found: FoundManifest, root: Path | None, progress: Progress | None) -> Component:
    manifest = found.manifest
    if manifest.kind == "code" and not manifest.version:
        manifest = manifest.model_copy(update={"version": found.version})
    distribution = found.distribution if manifest.kind == "code" else ""
    gathered = gather(manifest, root, found.source, distribution=distribution, progress=progress)
    readings = (*gathered.readings, *found.readings)
    return replace(gathered, findings=(*gathered.findings, *found.findings), readings=readings)


def _named(found: Mapping[str, FoundManifest], id: str, key: str) -> FoundManifest:
    if id not in found:
        raise ConfigError(
            f"{key} names the component {id!r}, which no installed manifest describes{nearest(id, found)}."
        )
    return found[id]


def _model(profile: Profile, found: Mapping[str, FoundManifest], progress: Progress | None) -> list[Component]:
    root = _root_of_model(profile)
    ids = profile.components.model
    if ids:
        key = profile.where("components.model")
        return [_gathered(_named(found, id, f"{key}: components.model"), root, progress) for id in ids]
    return [gather(_undescribed(profile), root, f"profile {profile.profile.name}", progress=progress)]


def _root_of_model(profile: Profile) -> Path | None:
    """What paths in the manifests of the model's parts are relative to, or None when it is not on this machine.

    That is the directory that holds the model's files, and of a model in a package the package's.
    """
    try:
        source = parse_source(profile.model.source)
        path = locate(source, profile.model.sha256 or None)
        if isinstance(source, PackageSource):
            return source.root()
    except GlmserveError:
        return None  # a path that does not exist yet; whoever runs the profile is told
    if path is None:
        return None
    return path if path.is_dir() else path.parent


def _undescribed(profile: Profile) -> Manifest:
    """The manifest of a model of which the profile alone says something."""
    source = parse_source(profile.model.source)
    declared = profile.model.license
    origin = None
    if isinstance(source, HubSource):
        publisher = source.repo.partition("/")[0]
        origin = Origin(type="hf", url=f"{HUB}{source.repo}", revision=source.revision, publisher=publisher)
    elif isinstance(source, PypiSource):
        origin = Origin(type="wheel", url=f"https://pypi.org/project/{source.package}/", revision=source.version)
    return Manifest(
        schema=SCHEMA,
        id="model",
        name=profile.model.served_name,
        kind="weights",
        delivery="user-supplied" if isinstance(source, PathSource | PackageSource) else "fetch",
        origin=origin,
        license=LicenseDeclaration(expression=declared, declared_at=f"model.license of profile {profile.profile.name}"),
    )


def _drafter_parts(profile: Profile, drafter: str | None) -> tuple[str, ...]:
    """The ids of what a drafter brings. Raises ConfigError for one that a profile with drafters' parts does not name.

    A name that is misspelt would else leave the parts out, and their terms with them.
    """
    parts, name = profile.components.drafters, drafter or profile.drafter.name
    if parts and name not in {*parts, *DRAFT_WITHOUT_PARTS, profile.drafter.fallback}:
        raise ConfigError(
            f"What the drafter {name!r} brings is not said under [components]{nearest(name, parts)}; write "
            f"drafters.{name} = [] there when it brings nothing."
        )
    return parts.get(name, ())


def _drafter_part(found: Mapping[str, FoundManifest], id: str, progress: Progress | None) -> Component:
    named = _named(found, id, "components.drafters")
    origin = named.manifest.origin
    root = None
    if origin is not None and origin.type == "hf" and unpinned(origin) is None:
        root = locate(HubSource(origin.url.removeprefix(HUB), origin.revision))
    return _gathered(named, root, progress)


def _single_file(path: Path) -> Component:
    """A plugin of one file declares its licence in a comment, as the SPDX specification says."""
    data = read_regular(path, MAX_PLUGIN_BYTES) or b""  # whoever loads the plugin is told
    found = _SPDX_TAG.findall(data.decode("utf-8", "replace"))
    # Every tag holds for a part of the file: a function that was copied in has one of its own.
    tags = list(dict.fromkeys(tag.strip() for tag in found))
    expression = " AND ".join(f"({tag})" for tag in tags) if len(tags) > 1 else "".join(tags)
    manifest = Manifest(
        schema=SCHEMA,
        id=re.sub(r"[^a-z0-9._-]+", "-", f"plugin-{path.stem}".lower())[:64],
        name=path.name,
        kind="code",
        delivery="user-supplied",
        license=LicenseDeclaration(expression=expression, declared_at=path.name),
    )
    return Component(manifest, f"the plugin file {path.name}")
