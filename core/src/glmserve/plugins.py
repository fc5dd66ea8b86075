"""Which plugins there are, and which providers they bring.

Plugins come from three places and register through one manager: the built-ins, the entry points of installed
distributions (group "glmserve"), and single files that a profile names. Everything that can be wrong with a plugin is
found here, before a model is touched, and is a PluginError that names the distribution.

GLMSERVE_PLUGINS decides which installed plugins load: unset, all of them; "a,b", only a and b; "-a", all but a; "",
none. A name is that of a distribution or of an entry point. Built-ins always load.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import Distribution, EntryPoint, PackageNotFoundError, distribution, entry_points
from pathlib import Path
from types import ModuleType
from typing import cast

import pluggy

from glmserve import builtins
from glmserve.api import PluginError, hookspecs
from glmserve.nearest import nearest
from glmserve.providers import SEAMS, SELECTION, Kind, Owner, Plugins, ProviderRecord

__all__ = [
    "PROJECT",
    "SELECTION",
    "Kind",
    "Owner",
    "Plugins",
    "ProviderRecord",
    "load_plugins",
    "owner_of",
    "selected_distributions",
]

PROJECT = "glmserve"


def load_plugins(extra: Path | Sequence[Path] | None = None, environ: Mapping[str, str] = os.environ) -> Plugins:
    """Collect the providers of the built-ins, the selected installed plugins, and the single-file plugins `extra`.

    Raises PluginError, naming the distribution or the file, for a plugin that does not import, misspells a hook,
    returns something that is no provider, or repeats a provider's name.
    """
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(hookspecs)
    owners: dict[str, Owner] = {}

    def register(module: object, key: str, owner: Owner) -> None:
        try:
            manager.register(module, key)
        except (pluggy.PluginValidationError, ValueError, TypeError) as error:
            raise PluginError(f"The plugin {owner.distribution} does not fit: {_one_line(error)}.") from error
        owners[key] = owner

    register(builtins, "builtins", owner_of(PROJECT))
    for point in _selected(entry_points(group=PROJECT), environ.get(SELECTION)):
        owner = _owner(point.dist) if point.dist is not None else Owner(point.name, "unknown", "unknown")
        register(_load(point, owner), f"{owner.distribution}:{point.name}", owner)
    for path in [extra] if isinstance(extra, Path) else extra or ():
        owner = Owner(str(path), "file", "unknown")
        register(_load_file(path), str(path), owner)
    _check_spelling(manager, owners)
    return _collect(manager, owners)


def selected_distributions(environ: Mapping[str, str] = os.environ) -> frozenset[str]:
    """Normalised names of the distributions whose plugins would load, without loading them."""
    points = _selected(entry_points(group=PROJECT), environ.get(SELECTION))
    return frozenset(_normal(point.dist.name) for point in points if point.dist is not None)


def owner_of(name: str) -> Owner:
    """The installed distribution `name`, with its version and licence."""
    try:
        return _owner(distribution(name))
    except PackageNotFoundError:
        return Owner(name, "unknown", "unknown")


def _owner(dist: Distribution) -> Owner:
    metadata = dist.metadata
    # Metadata 2.4 (PEP 639) has one SPDX field; the free text of the older "License" field is no licence expression.
    license = metadata.get("License-Expression", "unknown")  # type: ignore[attr-defined]
    return Owner(dist.name, dist.version, license)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _selected(points: Iterable[EntryPoint], selection: str | None) -> list[EntryPoint]:
    """The entry points that GLMSERVE_PLUGINS lets through, in a stable order."""
    found: dict[tuple[str, str], EntryPoint] = {}
    for point in points:
        # A distribution that is on the path twice (a checkout and an installed copy) counts once, as on import.
        found.setdefault((_dist_name(point), point.name), point)
    ordered = [found[key] for key in sorted(found)]
    if selection is None:
        return ordered
    words = [word.strip() for word in selection.split(",") if word.strip()]
    known = {_normal(name) for point in ordered for name in (_dist_name(point), point.name)}
    for word in words:
        if _normal(word.removeprefix("-")) not in known:
            hint = nearest(word.removeprefix("-"), sorted(known))
            raise PluginError(f"{SELECTION} names {word!r}, but no such plugin is installed{hint}.")
    blocked = {_normal(word[1:]) for word in words if word.startswith("-")}
    wanted = {_normal(word) for word in words if not word.startswith("-")}

    def passes(point: EntryPoint) -> bool:
        names = {_normal(_dist_name(point)), _normal(point.name)}
        if names & blocked:
            return False
        return bool(names & wanted) or (not wanted and bool(blocked))

    return [point for point in ordered if passes(point)]


def _dist_name(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.name


def _load(point: EntryPoint, owner: Owner) -> object:
    try:
        return point.load()
    except (Exception, SystemExit) as error:  # a plugin's import can raise anything
        raise PluginError(
            f"The plugin {owner.distribution} {owner.version} does not import ({point.value}): {_cause(error)}; "
            f"repair or uninstall it, or block it with {SELECTION}=-{owner.distribution}."
        ) from error


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise PluginError(f"The plugin file {path} does not exist; correct [plugins] files in the profile.")
    spec = importlib.util.spec_from_file_location(f"glmserve_file_{_normal(path.stem).replace('-', '_')}", path)
    if spec is None or spec.loader is None:
        raise PluginError(f"The plugin file {path} is not a Python file; its name must end in .py.")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a plugin's import can raise anything
        raise PluginError(f"The plugin file {path} does not import: {_cause(error)}.") from error
    return module


def _check_spelling(manager: pluggy.PluginManager, owners: Mapping[str, Owner]) -> None:
    hooks = [seam.hook for seam in SEAMS.values()]
    for name, caller in sorted(vars(manager.hook).items()):
        if isinstance(caller, pluggy.HookCaller) and not caller.has_spec():
            owner = owners[caller.get_hookimpls()[0].plugin_name]
            raise PluginError(
                f"The plugin {owner.distribution} implements the hook {name!r}, which does not exist"
                f"{nearest(name, hooks)}."
            )


def _collect(manager: pluggy.PluginManager, owners: Mapping[str, Owner]) -> Plugins:
    plugins = Plugins()
    for kind, seam in SEAMS.items():
        implementations: list[pluggy.HookImpl] = getattr(manager.hook, seam.hook).get_hookimpls()
        # One call per plugin, built-ins first: pluggy's own call would lose which plugin returned what.
        for implementation in implementations:
            owner = owners[implementation.plugin_name]
            try:
                providers = list(cast("Iterable[object]", implementation.function()))
            except Exception as error:  # the function is the plugin's
                raise PluginError(f"The hook {seam.hook} of {owner.distribution} failed: {_cause(error)}.") from error
            for provider in providers:
                plugins.add(kind, provider, owner)
    return plugins


def _cause(error: BaseException) -> str:
    return f"{type(error).__name__}: {_one_line(error)}"


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()).rstrip(".")
