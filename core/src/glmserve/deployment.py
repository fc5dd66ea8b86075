"""From a profile to a plan (headers only) and to a running engine."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from glmserve.api import CheckpointError, ConfigError, PluginError, SourceError, Topology
from glmserve.models.config import Keys
from glmserve.planning.facts import load_facts
from glmserve.planning.headers import PlannedCheckpoint
from glmserve.planning.missing import BRINGS, Missing, missing_provider
from glmserve.planning.plan import Plan, make_plan
from glmserve.planning.subject import Subject
from glmserve.planning.weights import check_stored
from glmserve.plugins import Kind, Plugins
from glmserve.profiles import Profile

if TYPE_CHECKING:
    from glmserve.api import Checkpoint, ModelFamily, ModelInfo
    from glmserve.engine.engine import Engine
    from glmserve.engine.scheduler import EngineOptions
    from glmserve.store.download import Progress
    from glmserve.store.tokenizer import TokenizerBundle

AUTO = "auto"
"""The name of a family or quantization that the checkpoint decides."""


@dataclass(frozen=True)
class Deployment:
    """A loaded model behind an engine that is not started yet."""

    engine: Engine
    tokenizer: TokenizerBundle


def plan(profile: Profile, plugins: Plugins, *, fetch_headers: bool = False, progress: Progress | None = None) -> Plan:
    """Resolve a profile without loading weights. Only `fetch_headers`, for an hf: source, uses the network.

    First-party plugins that are not installed are told by the plan. Raises ConfigError, PluginError, SourceError or
    CheckpointError for anything else that would stop the start.
    """
    names = {kind: name for kind, (_, name) in _chosen(profile).items()}
    missing = _check_providers(profile, plugins, names)
    path = _present(profile)
    opened = _opened(profile, path, fetch_headers, progress)
    if opened is None:
        return make_plan(profile, _spelt(names), missing, present=False, subject=None)
    checkpoint, headers = opened
    names = _resolved(profile, plugins, checkpoint, names)
    missing = _check_providers(profile, plugins, names)
    family = plugins.family(names["family"])()
    _set_options(checkpoint, profile, family)
    info = family.describe(checkpoint.config, profile.engine.kv_dtype)
    engine_options(profile, info.max_context)
    absent = {one.kind for one in missing}
    quantization = None if "quantization" in absent else plugins.quantization(names["quantization"])()
    if quantization is not None:
        check_stored(checkpoint, quantization, info)
    subject = Subject(checkpoint, headers, family, quantization)
    return make_plan(profile, _spelt(names), missing, path is not None, subject)


def build(profile: Profile, plugins: Plugins) -> Deployment:
    """Fetch what is missing, load the model and assemble the engine. Call `engine.start()` to run it."""
    from glmserve.engine.engine import Engine
    from glmserve.store.checkpoint import open_checkpoint
    from glmserve.store.progress import show_progress
    from glmserve.store.pull import pull
    from glmserve.store.sources import parse_source
    from glmserve.store.tokenizer import load_tokenizer

    names = {kind: name for kind, (_, name) in _chosen(profile).items()}
    _check_providers(profile, plugins, names)
    with show_progress() as fetched:
        path = pull(parse_source(profile.model.source), profile.model.sha256 or None, fetched)
    checkpoint = open_checkpoint(path)
    names = _resolved(profile, plugins, checkpoint, names)
    _check_providers(profile, plugins, names)
    family = plugins.family(names["family"])()
    _set_options(checkpoint, profile, family)
    info: ModelInfo = family.describe(checkpoint.config, profile.engine.kv_dtype)
    options = engine_options(profile, info.max_context)
    tokenizer = load_tokenizer(path)
    model = family.load(checkpoint, plugins.quantization(names["quantization"])(), info)
    topology = Topology(profile.transport.hosts, profile.transport.options)
    engine = Engine(
        model=model,
        eos_ids=frozenset((*info.eos_ids, *tokenizer.eos_ids)),
        options=options,
        drafter=plugins.drafter(profile.drafter.name)(info, profile.drafter.options),
        cache=plugins.cache(profile.cache.name),
        cache_options=profile.cache.options,
        fingerprint=_fingerprint(checkpoint, names["quantization"], profile),
        link=plugins.transport(profile.transport.name)().open(topology, 0),
        num_tokens=tokenizer.num_tokens,
    )
    return Deployment(engine, tokenizer)


def _fingerprint(checkpoint: Checkpoint, quantization: str, profile: Profile) -> str:
    """Of all that changes the bytes of a page."""
    parts = [checkpoint.fingerprint, quantization, profile.engine.kv_dtype]
    if profile.model.options:
        parts.append(json.dumps(profile.model.options, sort_keys=True))
    return ":".join(parts)


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


def _chosen(profile: Profile) -> dict[Kind, tuple[str, str]]:
    """kind -> (key in the profile, provider name), "auto" included."""
    return {
        "family": ("model.family", profile.model.family),
        "quantization": ("model.quantization", profile.model.quantization),
        "drafter": ("drafter.name", profile.drafter.name),
        "cache": ("cache.name", profile.cache.name),
        "transport": ("transport.name", profile.transport.name),
    }


def _spelt(names: dict[Kind, str]) -> dict[str, str]:
    return {str(kind): name for kind, name in names.items()}


def _check_providers(profile: Profile, plugins: Plugins, names: dict[Kind, str]) -> tuple[Missing, ...]:
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
    if "transport" not in {one.kind for one in missing}:
        topology = Topology(profile.transport.hosts, profile.transport.options)
        for finding in plugins.transport(profile.transport.name)().preflight(topology):
            if finding.level == "error":
                raise ConfigError(f"{profile.where('transport')}: {finding.message}")
    return tuple(missing)


def _missing(profile: Profile, plugins: Plugins, kind: Kind, key: str, name: str) -> Missing | None:
    """As `missing_provider`; the refusal says where `key` named it."""
    try:
        return missing_provider(plugins, kind, name)
    except PluginError as error:
        raise PluginError(f"{profile.where(key)}: {key}: {error}") from None


def _present(profile: Profile) -> Path | None:
    """Where the model is on this machine; None when it has to be fetched, or facts stand in for it."""
    from glmserve.store.pull import locate
    from glmserve.store.sources import PathSource, parse_source

    source = parse_source(profile.model.source)
    if profile.model.facts and isinstance(source, PathSource) and not source.path.exists():
        return None
    return locate(source, profile.model.sha256 or None)


def _opened(
    profile: Profile, path: Path | None, fetch_headers: bool, progress: Progress | None
) -> tuple[Checkpoint, str] | None:
    """The model's headers and where they are from: this machine, then the hub if asked, then the profile's facts."""
    from glmserve.store.checkpoint import open_checkpoint
    from glmserve.store.sources import HubSource, parse_source

    if path is not None:
        return open_checkpoint(path), f"the headers in {path}"
    source = parse_source(profile.model.source)
    if fetch_headers:
        from glmserve.store.remote import read_headers

        if not isinstance(source, HubSource):
            raise SourceError(f"--fetch-headers reads those of an hf: source, and model.source is {source}; drop it.")
        return read_headers(source, progress), f"the headers of {source}"
    if profile.model.facts:
        facts = load_facts(profile.model.facts, profile.directory)
        return PlannedCheckpoint(facts, Path(str(source))), f"the facts {profile.model.facts}"
    return None


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


def _set_options(checkpoint: Checkpoint, profile: Profile, family: ModelFamily) -> None:
    """Lay model.options over the checkpoint's configuration. Raises ConfigError for one that the family has not."""
    for name in profile.model.options:
        if name not in family.options:
            there = f"its options are {', '.join(sorted(family.options))}" if family.options else "it has none"
            raise ConfigError(
                f"{profile.where('model.options')}: family {family.name!r} has no option {name!r}; {there}."
            )
    checkpoint.config = {**checkpoint.config, **profile.model.options}
