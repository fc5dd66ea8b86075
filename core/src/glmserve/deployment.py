"""From a profile to a plan (headers only) and to a running engine."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glmserve.api import CheckpointError, ConfigError, PluginError, Topology
from glmserve.plugins import Kind, Plugins
from glmserve.profiles import Profile

if TYPE_CHECKING:
    from glmserve.api import Checkpoint, ModelInfo, Quantization
    from glmserve.engine.engine import Engine
    from glmserve.engine.scheduler import EngineOptions
    from glmserve.store.tokenizer import TokenizerBundle


@dataclass(frozen=True)
class Memory:
    """Bytes on one rank."""

    weights_bytes: int
    """Linear layers, as their quantization holds them, and the embedding as it is stored."""
    kv_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.kv_bytes


@dataclass(frozen=True)
class Plan:
    """What a profile resolves to. What only the checkpoint's headers can tell is None until the model is here."""

    profile: str
    source: str
    present: bool
    """The model is on this machine."""
    served_name: str
    providers: dict[str, str]
    max_context: int
    kv_tokens: int
    ranks: tuple[str, ...]
    memory: Memory | None
    """On each rank."""

    def to_dict(self) -> dict[str, Any]:
        plan = asdict(self)
        if self.memory is not None:
            plan["memory"]["total_bytes"] = self.memory.total_bytes
        return plan


@dataclass(frozen=True)
class Deployment:
    """A loaded model behind an engine that is not started yet."""

    engine: Engine
    tokenizer: TokenizerBundle


@dataclass(frozen=True)
class _Resolved:
    """The checkpoint's share of a plan."""

    checkpoint: Checkpoint
    info: ModelInfo
    family: str
    quantization: str


def plan(profile: Profile, plugins: Plugins) -> Plan:
    """Resolve a profile without loading weights and without the network.

    Raises ConfigError, PluginError or CheckpointError for anything that would stop the start.
    """
    _check_providers(profile, plugins)
    path = _present(profile)
    return _plan(profile, plugins, None if path is None else _resolve(path, profile, plugins))


def build(profile: Profile, plugins: Plugins) -> Deployment:
    """Fetch what is missing, load the model and assemble the engine. Call `engine.start()` to run it."""
    from glmserve.engine.engine import Engine
    from glmserve.store.progress import show_progress
    from glmserve.store.pull import pull
    from glmserve.store.sources import parse_source
    from glmserve.store.tokenizer import load_tokenizer

    _check_providers(profile, plugins)
    with show_progress() as fetched:
        path = pull(parse_source(profile.model.source), profile.model.sha256 or None, fetched)
    resolved = _resolve(path, profile, plugins)
    info = resolved.info
    tokenizer = load_tokenizer(path)
    quantization = plugins.quantization(resolved.quantization)()
    model = plugins.family(resolved.family)().load(resolved.checkpoint, quantization, info)
    topology = Topology(profile.transport.hosts, profile.transport.options)
    engine = Engine(
        model=model,
        eos_ids=frozenset((*info.eos_ids, *tokenizer.eos_ids)),
        options=engine_options(profile, info.max_context),
        drafter=plugins.drafter(profile.drafter.name)(info, profile.drafter.options),
        cache=plugins.cache(profile.cache.name),
        cache_options=profile.cache.options,
        fingerprint=_fingerprint(resolved, profile),
        link=plugins.transport(profile.transport.name)().open(topology, 0),
        num_tokens=tokenizer.num_tokens,
    )
    return Deployment(engine, tokenizer)


def _fingerprint(resolved: _Resolved, profile: Profile) -> str:
    """Of all that changes the bytes of a page."""
    parts = [resolved.checkpoint.fingerprint, resolved.quantization, profile.engine.kv_dtype]
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


def _check_providers(profile: Profile, plugins: Plugins) -> None:
    named: dict[Kind, str] = {}
    for kind, (key, name) in _chosen(profile).items():
        if name == "auto" and kind in ("family", "quantization"):
            continue
        try:
            plugins.get(kind, name)
        except PluginError as error:
            raise PluginError(f"{profile.where(key)}: {key}: {error}") from None
        named[kind] = name
    if len(named) == len(_chosen(profile)):
        plugins.check_combination(named)
    engine_options(profile)
    topology = Topology(profile.transport.hosts, profile.transport.options)
    for finding in plugins.transport(profile.transport.name)().preflight(topology):
        if finding.level == "error":
            raise ConfigError(f"{profile.where('transport')}: {finding.message}")


def _present(profile: Profile) -> Path | None:
    """Where the model is on this machine; None when it has to be fetched."""
    from glmserve.store.pull import locate
    from glmserve.store.sources import parse_source

    return locate(parse_source(profile.model.source), profile.model.sha256 or None)


def _resolve(path: Path, profile: Profile, plugins: Plugins) -> _Resolved:
    from glmserve.store.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(path)
    family = profile.model.family
    if family == "auto":
        fitting = plugins.families_of(checkpoint)
        if not fitting:
            asked = checkpoint.config.get("architectures") or ()
            raise CheckpointError(
                f"No installed model family runs {', '.join(map(str, asked)) or 'an unnamed architecture'} ({path}); "
                f"there is {', '.join(plugins.names('family'))}."
            )
        family = fitting[0]
    quantization = profile.model.quantization
    if quantization == "auto":
        fitting = plugins.quantizations_of(checkpoint)
        if len(fitting) != 1:
            found = " and ".join(fitting) or "no installed quantization"
            raise CheckpointError(
                f"{found} can read {path}; set model.quantization to one of {', '.join(plugins.names('quantization'))}."
            )
        quantization = fitting[0]
    chosen: dict[Kind, str] = {kind: name for kind, (_, name) in _chosen(profile).items()}
    plugins.check_combination({**chosen, "family": family, "quantization": quantization})
    _set_options(checkpoint, profile, plugins, family)
    info = plugins.family(family)().describe(checkpoint.config, profile.engine.kv_dtype)
    engine_options(profile, info.max_context)
    return _Resolved(checkpoint, info, family, quantization)


def _set_options(checkpoint: Checkpoint, profile: Profile, plugins: Plugins, family: str) -> None:
    """Lay model.options over the checkpoint's configuration. Raises ConfigError for one that the family has not."""
    known = plugins.family(family).options
    for name in profile.model.options:
        if name not in known:
            there = f"its options are {', '.join(sorted(known))}" if known else "it has none"
            raise ConfigError(f"{profile.where('model.options')}: family {family!r} has no option {name!r}; {there}.")
    checkpoint.config = {**checkpoint.config, **profile.model.options}


def _plan(profile: Profile, plugins: Plugins, resolved: _Resolved | None) -> Plan:
    providers: dict[Kind, str] = {kind: name for kind, (_, name) in _chosen(profile).items()}
    memory = None
    if resolved is not None:
        providers |= {"family": resolved.family, "quantization": resolved.quantization}
        memory = _memory(profile, plugins.quantization(resolved.quantization)(), resolved)
    return Plan(
        profile=profile.profile.name,
        source=profile.model.source,
        present=resolved is not None,
        served_name=profile.model.served_name,
        providers={str(kind): name for kind, name in providers.items()},
        max_context=profile.engine.max_context,
        kv_tokens=_pool_tokens(profile),
        ranks=profile.transport.hosts,
        memory=memory,
    )


def _pool_tokens(profile: Profile) -> int:
    """engine.kv_tokens in whole pages."""
    return engine_options(profile).num_pages * profile.engine.page_tokens


def _memory(profile: Profile, quantization: Quantization, resolved: _Resolved) -> Memory:
    checkpoint, info = resolved.checkpoint, resolved.info
    weights = sum(quantization.memory_bytes(checkpoint, spec) for spec in info.linears)
    tied = any(spec.parts == (info.embedding.removesuffix(".weight"),) for spec in info.linears)
    if not tied:
        weights += checkpoint.require(info.embedding).nbytes
    kv = sum(paged.token_bytes for paged in info.paged) * _pool_tokens(profile)
    return Memory(weights, kv)
