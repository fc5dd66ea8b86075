"""The providers of the four seams and of the model families: what each must look like, and the choice by name.

How they are found is the business of `glmserve.plugins`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol, cast

from glmserve.api import Checkpoint, Drafter, ModelFamily, PluginError, PrefixCache, Quantization, Transport
from glmserve.nearest import nearest

SELECTION = "GLMSERVE_PLUGINS"
"""The variable that selects or blocks installed plugins."""

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

    def families_of(self, checkpoint: Checkpoint) -> list[str]:
        """Names of the families that run the checkpoint's architecture."""
        asked = set(checkpoint.config.get("architectures") or ())
        return [family.name for family in self.all("family") if family.architectures & asked]

    def quantizations_of(self, checkpoint: Checkpoint) -> list[str]:
        """Names of the quantizations that say that they read the checkpoint."""
        return [quantization.name for quantization in self.all("quantization") if quantization.detect(checkpoint)]

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
                    label = self._label(other_kind, other)
                    others |= dict.fromkeys(self.get(other_kind, other).capabilities, label)
            for capability in sorted(provider.requires - others.keys()):
                bringers = [f"{r.kind} {r.name!r}" for r in self.describe() if capability in r.capabilities]
                bringers = [b for b in bringers if b != f"{kind} {name!r}"]
                advice = f"choose {' or '.join(bringers)}" if bringers else "no installed plugin has it"
                raise PluginError(
                    f"{self._label(kind, name)} requires {capability!r}, which none of the other chosen plugins has; "
                    f"{advice}."
                )
            for capability in sorted(provider.conflicts & others.keys()):
                raise PluginError(
                    f"{self._label(kind, name)} does not work with {others[capability]}: they conflict over "
                    f"{capability!r}; choose another for one of them."
                )

    def _label(self, kind: Kind, name: str) -> str:
        return f"{kind} {name!r} ({self.owner(kind, name).distribution})"

    def _find(self, kind: Kind, name: str) -> tuple[type[Any], Owner]:
        try:
            return self._providers[kind][name]
        except KeyError:
            raise PluginError(f"No {kind} named {name!r} is installed{nearest(name, self.names(kind))}.") from None

    def add(self, kind: Kind, provider: object, owner: Owner) -> None:
        """Check what a hook returned and take it in. Raises PluginError naming the owner, and the other of a name."""
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
