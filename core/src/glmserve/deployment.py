"""From a profile to a plan (headers only) and to a running engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from glmserve.api import SourceError
from glmserve.planning.facts import load_facts
from glmserve.planning.headers import PlannedCheckpoint
from glmserve.planning.plan import Plan, make_plan
from glmserve.planning.subject import Subject
from glmserve.planning.weights import check_stored
from glmserve.plugins import Kind, Plugins
from glmserve.profiles import Profile
from glmserve.resolution import check_providers, chosen, resolve

if TYPE_CHECKING:
    from glmserve.api import Checkpoint
    from glmserve.engine.engine import Engine
    from glmserve.store.download import Progress
    from glmserve.store.tokenizer import TokenizerBundle


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
    names = chosen(profile)
    missing = check_providers(profile, plugins, names)
    path = _present(profile)
    opened = _opened(profile, path, fetch_headers, progress)
    if opened is None:
        return make_plan(profile, _spelt(names), missing, present=False, subject=None)
    resolved = resolve(profile, plugins, opened[0])
    absent = {one.kind for one in resolved.missing}
    quantization = None if "quantization" in absent else plugins.quantization(resolved.names["quantization"])()
    if quantization is not None:
        check_stored(resolved.checkpoint, quantization, resolved.info)
    subject = Subject(resolved.checkpoint, opened[1], resolved.family, quantization)
    return make_plan(profile, _spelt(resolved.names), resolved.missing, path is not None, subject)


def build(profile: Profile, plugins: Plugins) -> Deployment:
    """Fetch what is missing, load the model on every rank and assemble the engine. Call `engine.start()` to run it."""
    from glmserve.engine.engine import Engine
    from glmserve.joining import open_ranks
    from glmserve.store.checkpoint import open_checkpoint
    from glmserve.store.progress import show_progress
    from glmserve.store.pull import pull
    from glmserve.store.sources import parse_source
    from glmserve.store.tokenizer import load_tokenizer

    check_providers(profile, plugins, chosen(profile))
    with show_progress() as fetched:
        path = pull(parse_source(profile.model.source), profile.model.sha256 or None, fetched)
    tokenizer = load_tokenizer(path)
    resolved = resolve(profile, plugins, open_checkpoint(path))
    opened = open_ranks(resolved)
    engine = Engine(
        ranks=opened.ranks,
        eos_ids=frozenset((*resolved.info.eos_ids, *tokenizer.eos_ids)),
        options=resolved.options,
        cache=plugins.cache(profile.cache.name),
        cache_options=profile.cache.options,
        fingerprint=resolved.fingerprint,
        exact=opened.exact,
        num_tokens=tokenizer.num_tokens,
    )
    return Deployment(engine, tokenizer)


def _spelt(names: dict[Kind, str]) -> dict[str, str]:
    return {str(kind): name for kind, name in names.items()}


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
