"""What a profile resolves to: which provider does what, of which model, in which sizes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from glmserve.api import CheckpointError, ConfigError, PluginError, Topology
from glmserve.models.config import Keys
from glmserve.planning.missing import BRINGS, Missing, missing_provider
from glmserve.plugins import Kind, Plugins
from glmserve.profiles import Profile

if TYPE_CHECKING:
    from glmserve.api import Checkpoint, ModelFamily, ModelInfo
    from glmserve.engine.scheduler import EngineOptions

AUTO = "auto"
"""The name of a family or quantization that the checkpoint decides."""


@dataclass(frozen=True)
class Resolved:
    """A profile and the headers of its model."""

    profile: Profile
    plugins: Plugins
    names: dict[Kind, str]
    """The providers, with what "auto" stands for."""
    missing: tuple[Missing, ...]
    """First-party providers that are not installed."""
    checkpoint: Checkpoint
    family: ModelFamily
    info: ModelInfo
    """Of the whole model."""
    options: EngineOptions

    @property
    def fingerprint(self) -> str:
        """Of all that changes the bytes of a page."""
        parts = [self.checkpoint.fingerprint, self.names["quantization"], self.profile.engine.kv_dtype]
        if self.profile.model.options:
            parts.append(json.dumps(self.profile.model.options, sort_keys=True))
        return ":".join(parts)


def resolve(profile: Profile, plugins: Plugins, checkpoint: Checkpoint) -> Resolved:
    """Raises ConfigError, PluginError or CheckpointError for anything that would stop the start."""
    names = _resolved(profile, plugins, checkpoint, chosen(profile))
    missing = check_providers(profile, plugins, names)
    family = plugins.family(names["family"])()
    _set_options(checkpoint, profile, family)
    _check_ranks(profile, plugins, family)
    info = family.describe(checkpoint.config, profile.engine.kv_dtype)
    return Resolved(
        profile, plugins, names, missing, checkpoint, family, info, engine_options(profile, info.max_context)
    )


def engine_options(profile: Profile, model_context: int | None = None) -> EngineOptions:
    """The engine's sizes. Raises ConfigError when they do not fit each other or the model."""
    from glmserve.engine.scheduler import EngineOptions

    engine = profile.engine
    if model_context is not None and engine.max_context > model_context:
        raise ConfigError(
            f"{profile.where('engine.max_context')}: engine.max_context is {engine.max_context} tokens, but the model "
            f"was made for {model_context}; lower it."
        )
    return EngineOptions(
        max_context=engine.max_context,
        kv_tokens=engine.kv_tokens,
        page_tokens=engine.page_tokens,
        prefill_chunk=engine.prefill_chunk,
        step_tokens=engine.step_tokens,
        max_sequences=engine.max_sequences,
        max_queue=engine.max_queue,
        draft_depth=profile.drafter.depth,
    )


def chosen(profile: Profile) -> dict[Kind, str]:
    """The providers that a profile names, "auto" included."""
    return {kind: name for kind, (_, name) in _chosen(profile).items()}


def _chosen(profile: Profile) -> dict[Kind, tuple[str, str]]:
    """kind -> (key in the profile, provider name), "auto" included."""
    return {
        "family": ("model.family", profile.model.family),
        "quantization": ("model.quantization", profile.model.quantization),
        "drafter": ("drafter.name", profile.drafter.name),
        "cache": ("cache.name", profile.cache.name),
        "transport": ("transport.name", profile.transport.name),
    }


def check_providers(profile: Profile, plugins: Plugins, names: dict[Kind, str]) -> tuple[Missing, ...]:
    """Refuse names that nobody provides and combinations that do not work; what a plugin will bring is returned."""
    # First: where it has taken the drafter's place already, the key at fault is its own.
    if profile.drafter.fallback:
        _missing(profile, plugins, "drafter", "drafter.fallback", profile.drafter.fallback)
    missing = []
    for kind, name in names.items():
        if name == AUTO and kind in ("family", "quantization"):
            continue
        found = _missing(profile, plugins, kind, _chosen(profile)[kind][0], name)
        missing += [found] if found is not None else []
    if not missing and AUTO not in (names["family"], names["quantization"]):
        plugins.check_combination(names)
    engine_options(profile)
    _check_parallel(profile)
    if "transport" not in {one.kind for one in missing}:
        topology = Topology(profile.transport.hosts, profile.transport.options)
        for finding in plugins.transport(profile.transport.name)().preflight(topology):
            if finding.level == "error":
                raise ConfigError(f"{profile.where('transport')}: {finding.message}")
    return tuple(missing)


def _check_parallel(profile: Profile) -> None:
    if len(profile.transport.hosts) != profile.parallel.tensor:
        raise ConfigError(
            f"{profile.where('parallel.tensor')}: parallel.tensor is {profile.parallel.tensor}, but transport.hosts "
            f"names {len(profile.transport.hosts)}; each rank needs one."
        )
    if profile.parallel.tensor % profile.parallel.context:
        raise ConfigError(
            f"{profile.where('parallel.context')}: parallel.context is {profile.parallel.context}, which does not "
            f"divide parallel.tensor of {profile.parallel.tensor}."
        )
    if profile.engine.page_tokens % profile.parallel.context:
        raise ConfigError(
            f"{profile.where('engine.page_tokens')}: engine.page_tokens is {profile.engine.page_tokens}, and the "
            f"positions of a page are dealt out over parallel.context of {profile.parallel.context} ranks; choose a "
            "multiple."
        )


def _missing(profile: Profile, plugins: Plugins, kind: Kind, key: str, name: str) -> Missing | None:
    """As `missing_provider`; the refusal says where `key` named it."""
    try:
        return missing_provider(plugins, kind, name)
    except PluginError as error:
        raise PluginError(f"{profile.where(key)}: {key}: {error}") from None


def _resolved(profile: Profile, plugins: Plugins, checkpoint: Checkpoint, names: dict[Kind, str]) -> dict[Kind, str]:
    """The names with what "auto" stands for."""
    family, quantization = names["family"], names["quantization"]
    keys = Keys(checkpoint.config)
    if family == AUTO:
        asked = keys.names("architectures")
        fitting = plugins.families_of(checkpoint)
        if not fitting:
            raise CheckpointError(
                f"No installed model family runs {', '.join(asked) or 'an unnamed architecture'} "
                f"({checkpoint.path}); there is {', '.join(plugins.names('family'))}."
            )
        family = fitting[0]
    if quantization == AUTO:
        fitting = plugins.quantizations_of(checkpoint)
        method = str(keys.section("quantization_config").get("quant_method"))
        if not fitting and ("quantization", method) in BRINGS:
            fitting = [method]
        if len(fitting) != 1:
            found = " and ".join(fitting) or "no installed quantization"
            raise CheckpointError(
                f"{found} can read {checkpoint.path}; set model.quantization to one of "
                f"{', '.join(plugins.names('quantization'))}."
            )
        quantization = fitting[0]
    return {**names, "family": family, "quantization": quantization}


def _check_ranks(profile: Profile, plugins: Plugins, family: ModelFamily) -> None:
    """Several ranks need providers that know of them. Raises ConfigError."""
    if profile.parallel.context > 1 and "context" not in family.capabilities:
        raise ConfigError(
            f"{profile.where('parallel.context')}: family {family.name!r} keeps every position on every rank, so "
            "parallel.context must be 1."
        )
    cache = profile.cache.name
    known = cache in plugins.names("cache")
    if profile.parallel.tensor > 1 and known and "ranks" not in plugins.cache(cache).capabilities:
        raise ConfigError(
            f"{profile.where('cache.name')}: cache {cache!r} keeps the pages of one rank, and parallel.tensor is "
            f"{profile.parallel.tensor}; use cache 'none'."
        )


def _set_options(checkpoint: Checkpoint, profile: Profile, family: ModelFamily) -> None:
    """Lay model.options over the checkpoint's configuration. Raises ConfigError for one that the family has not."""
    for name in profile.model.options:
        if name not in family.options:
            there = f"its options are {', '.join(sorted(family.options))}" if family.options else "it has none"
            raise ConfigError(
                f"{profile.where('model.options')}: family {family.name!r} has no option {name!r}; {there}."
            )
    checkpoint.config = {**checkpoint.config, **profile.model.options}
