"""How ranks come together: rank 0 sends the profile, all compare what they are, load their parts, and are tested."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import psutil
import torch

from glmserve.api import ConfigError, GlmserveError, Link, Parallel, RankError, SourceError, Topology
from glmserve.engine.follower import follow
from glmserve.engine.kv import PageMemory
from glmserve.engine.ranks import Ranks
from glmserve.engine.worker import Worker, encode
from glmserve.identity import first_difference, identity
from glmserve.profiles import Profile, received_profile, send_profile
from glmserve.resolution import Resolved, resolve
from glmserve.selftest import check_probe, reference_of


@dataclass(frozen=True)
class OpenRanks:
    """Ranks that have loaded their parts of the model."""

    ranks: Ranks
    exact: bool
    """The arithmetic of all of them is row-invariant."""


def open_ranks(resolved: Resolved) -> OpenRanks:
    """Start the other ranks, if there are any, and load the model on all. Raises what stops the start, ranks named."""
    profile = resolved.profile
    set_threads(profile)
    topology = Topology(profile.transport.hosts, profile.transport.options)
    link = resolved.plugins.transport(profile.transport.name)().open(topology, 0)
    try:
        return _lead(resolved, link)
    except BaseException:
        link.close()
        raise


def _lead(resolved: Resolved, link: Link) -> OpenRanks:
    several = link.world_size > 1
    link.publish(encode(send_profile(resolved.profile)))
    if several:
        own = identity(resolved)
        for rank, theirs in enumerate(_reports(link), 1):
            difference = first_difference(own, theirs)
            if difference is not None:
                raise ConfigError(f"Rank {rank} cannot join: {difference}.")
    link.publish(encode("load"))
    worker = load_worker(resolved, link)
    # Before the others are waited for: they wait for this as long as a start may take, and not as long as a step.
    reference = reference_of(resolved) if several and resolved.profile.parallel.self_test else None
    loaded = _reports(link)
    ranks = Ranks(worker, link)
    if reference is not None:
        try:
            check_probe(ranks, reference)
        except RankError:
            ranks.close()
            raise
    return OpenRanks(ranks, worker.model.row_invariant and all(report["row_invariant"] for report in loaded))


def _reports(link: Link) -> list[dict[str, Any]]:
    return [json.loads(report) for report in link.collect(starting=True)]


def join(link: Link) -> None:
    """A rank other than 0, from its first message to its last. Raises what ends it.

    Rank 0 is told of it. What stops the start is said by rank 0 only.
    """
    try:
        try:
            worker = _start(link)
        except GlmserveError as error:
            if not isinstance(error, RankError):
                link.abandon(str(error))
            raise SystemExit(error.exit_code) from None
        follow(worker, link)
    except GlmserveError:
        raise
    except Exception as error:
        link.abandon(f"{type(error).__name__}: {' '.join(str(error).split()).rstrip('.')}.")
        raise


def _start(link: Link) -> Worker:
    profile = received_profile(json.loads(link.receive(starting=True)))
    set_threads(profile)
    resolved = _resolved_here(profile)
    link.report(encode(identity(resolved)))
    link.receive(starting=True)
    worker = load_worker(resolved, link)
    link.report(encode({"row_invariant": worker.model.row_invariant}))
    return worker


def _resolved_here(profile: Profile) -> Resolved:
    """With what is installed and stored on this machine."""
    from glmserve.plugins import load_plugins
    from glmserve.store.checkpoint import open_checkpoint
    from glmserve.store.pull import locate
    from glmserve.store.sources import parse_source

    path = locate(parse_source(profile.model.source), profile.model.sha256 or None)
    if path is None:
        raise SourceError(f"{profile.model.source} is not on this machine; fetch it with `glmserve pull`.")
    return resolve(profile, load_plugins(profile.plugin_files), open_checkpoint(path))


def load_worker(resolved: Resolved, link: Link) -> Worker:
    """This rank's part of the model, its pages, and the drafter where it runs."""
    profile, plugins, options = resolved.profile, resolved.plugins, resolved.options
    parallel = Parallel(link.group, profile.parallel.context)
    quantization = plugins.quantization(resolved.names["quantization"])()
    model = resolved.family.load(resolved.checkpoint, quantization, resolved.info, parallel)
    provider = plugins.drafter(profile.drafter.name)
    runs_here = link.rank == 0 or provider.replicated
    drafter = provider(model.info, profile.drafter.options) if runs_here else None
    memory = PageMemory(model.info, options.num_pages, options.page_tokens, parallel.share)
    return Worker(model, memory, drafter, link.group)


def set_threads(profile: Profile) -> None:
    """Those of the profile, or a rank's part of this machine's cores."""
    here = max(profile.transport.hosts.count(host) for host in profile.transport.hosts)
    torch.set_num_threads(profile.engine.threads or max(1, (psutil.cpu_count(logical=False) or 1) // here))
