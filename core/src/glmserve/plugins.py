"""Which plugins there are, and which providers they bring.

Plugins come from three places and register through one manager: the built-ins, the entry points of installed
distributions (group "glmserve"), and single files that a profile names. Everything that can be wrong with a plugin is
found here, before a model is touched, and is a PluginError that names the distribution.

GLMSERVE_PLUGINS decides which installed plugins load: unset, all of them; "a,b", only a and b; "-a", all but a; "",
none. A name is that of a distribution or of an entry point. Built-ins always load.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import Distribution, EntryPoint, PackageNotFoundError, distribution, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, Protocol, cast

import pluggy

from glmserve import builtins
from glmserve.api import Drafter, ModelFamily, PluginError, PrefixCache, Quantization, Transport, hookspecs
from glmserve.nearest import nearest

PROJECT = "glmserve"
SELECTION = "GLMSERVE_PLUGINS"

Kind = Literal["quantization", "drafter", "cache", "transport", "family"]


class Provider(Protocol):
    """What the provider classes of all seams have in common."""

    name: str
    __name__: str
    capabilities: frozenset[str]
    requires: frozenset[str]
    conflicts: frozenset[str]


@dataclass(frozen=True)
class Seam:
    """One kind of provider: the hook that collects it and the class it must implement."""

    hook: str
    contract: type[Any]


SEAMS: Mapping[Kind, Seam] = {
    "quantization": Seam("quantizations", Quantization),
    "drafter": Seam("drafters", Drafter),
    "cache": Seam("prefix_caches", PrefixCache),
    "transport": Seam("transports", Transport),
    "family": Seam("model_families", ModelFamily),
}


@dataclass(frozen=True)
class Owner:
    """The distribution, or the file, that a provider comes from."""

    distribution: str
    version: str
    license: str
    """SPDX expression, or "unknown"."""


@dataclass(frozen=True)
class ProviderRecord:
    """What `glmserve plugins` says of one provider."""

    name: str
    kind: Kind
    distribution: str
    version: str
    license: str
    capabilities: tuple[str, ...]
    requires: tuple[str, ...]
    conflicts: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Plugins:
    """The providers of all seams, by kind and name."""

    _providers: dict[Kind, dict[str, tuple[type[Any], Owner]]] = field(default_factory=lambda: {k: {} for k in SEAMS})

    def quantization(self, name: str) -> type[Quantization]:
        return cast("type[Quantization]", self.get("quantization", name))

    def drafter(self, name: str) -> type[Drafter]:
        return cast("type[Drafter]", self.get("drafter", name))

    def cache(self, name: str) -> type[PrefixCache]:
        return cast("type[PrefixCache]", self.get("cache", name))

    def transport(self, name: str) -> type[Transport]:
        return cast("type[Transport]", self.get("transport", name))

    def family(self, name: str) -> type[ModelFamily]:
        return cast("type[ModelFamily]", self.get("family", name))

    def get(self, kind: Kind, name: str) -> type[Any]:
        """The provider class. Raises PluginError with the nearest name there is."""
        return self._find(kind, name)[0]

    def owner(self, kind: Kind, name: str) -> Owner:
        """Where that provider comes from. Raises PluginError as `get` does."""
        return self._find(kind, name)[1]

    def names(self, kind: Kind) -> list[str]:
        return sorted(self._providers[kind])

    def all(self, kind: Kind) -> list[type[Any]]:
        """Every provider of a seam, by name."""
        return [self._providers[kind][name][0] for name in self.names(kind)]

    def describe(self) -> list[ProviderRecord]:
        """One record for each provider, seam by seam."""
        return [
            ProviderRecord(
                name=name,
                kind=kind,
                distribution=owner.distribution,
                version=owner.version,
                license=owner.license,
                capabilities=tuple(sorted(provider.capabilities)),
                requires=tuple(sorted(provider.requires)),
                conflicts=tuple(sorted(provider.conflicts)),
            )
            for kind, providers in self._providers.items()
            for name, (provider, owner) in sorted(providers.items())
        ]

    def check_combination(self, chosen: Mapping[Kind, str]) -> None:
        """Raise PluginError when a chosen provider misses a capability it requires, or meets one it conflicts with.

        `chosen` maps kinds to provider names. Capabilities are those of the other chosen providers.
        """
        for kind, name in chosen.items():
            provider = self.get(kind, name)
            others: dict[str, str] = {}
            for other_kind, other in chosen.items():
                if other_kind != kind:
                    others |= dict.fromkeys(self.get(other_kind, other).capabilities, f"{other_kind} {other!r}")
            for capability in sorted(provider.requires - others.keys()):
                bringers = [f"{r.kind} {r.name!r}" for r in self.describe() if capability in r.capabilities]
                advice = f"choose {' or '.join(bringers)}" if bringers else "no installed plugin has it"
                raise PluginError(
                    f"{kind} {name!r} requires {capability!r}, which none of the other chosen plugins has; {advice}."
                )
            for capability in sorted(provider.conflicts & others.keys()):
                raise PluginError(
                    f"{kind} {name!r} does not work with {others[capability]} (conflict over {capability!r}); "
                    "choose another for one of them."
                )

    def _find(self, kind: Kind, name: str) -> tuple[type[Any], Owner]:
        try:
            return self._providers[kind][name]
        except KeyError:
            raise PluginError(f"No {kind} named {name!r} is installed{nearest(name, self.names(kind))}.") from None

    def _add(self, kind: Kind, provider: object, owner: Owner) -> None:
        where = f"the hook {SEAMS[kind].hook} of {owner.distribution}"
        contract = SEAMS[kind].contract
        if not (inspect.isclass(provider) and issubclass(provider, contract)):
            raise PluginError(
                f"{where} returned {provider!r}, which is not a subclass of glmserve.api.{contract.__name__}."
            )
        if inspect.isabstract(provider):
            missing = ", ".join(sorted(getattr(provider, "__abstractmethods__", ())))
            raise PluginError(f"{where} returned {provider.__name__}, which does not implement {missing}.")
        name = getattr(provider, "name", None)
        if not isinstance(name, str) or not name:
            raise PluginError(f"{where} returned {provider.__name__}, whose `name` must be a non-empty string.")
        for attribute in ("capabilities", "requires", "conflicts"):
            value = getattr(provider, attribute)
            if not (isinstance(value, frozenset) and all(isinstance(v, str) for v in value)):
                raise PluginError(f"{where}: {provider.__name__}.{attribute} must be a frozenset of strings.")
        if name in self._providers[kind]:
            first = self._providers[kind][name][1].distribution
            raise PluginError(
                f"Both {first} and {owner.distribution} provide the {kind} {name!r}; "
                f"uninstall one, or block it with {SELECTION}=-{owner.distribution}."
            )
        self._providers[kind][name] = (provider, owner)


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
    except Exception as error:  # a plugin's import can raise anything
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
    except Exception as error:  # a plugin's import can raise anything
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
                plugins._add(kind, provider, owner)
    return plugins


def _cause(error: BaseException) -> str:
    return f"{type(error).__name__}: {_one_line(error)}"


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()).rstrip(".")
