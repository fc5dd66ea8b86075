"""The plan: all that a profile resolves to, and every figure that can be known before the model is here."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import psutil

from glmserve.api import CheckpointError, ConfigError, PluginError
from glmserve.models.glm_moe_dsa.config import GlmConfig
from glmserve.profiles import Profile

from .budget import GIB, Budget, Remedy, budget, next_token_drafts, remedies
from .cache import CacheEntry
from .components import Component
from .drafters import check_target
from .missing import Missing
from .roofline import Decode, decode
from .subject import NEXT_TOKEN, Subject, drafter_model, pool_bytes, pool_tokens
from .traffic import Collective, glm_traffic, prefill_sum_bytes
from .weights import Weights

SHORT_CONTEXT = 2048
"""Tokens of context of the first decode estimate; the second is at engine.max_context."""


@dataclass(frozen=True)
class CacheRow:
    """The cache in one type."""

    kv_dtype: str
    token_bytes: int
    """Of one token, over all layers."""
    whole_pool_bytes: int
    """On each rank when full, without context parallelism."""
    dealt_token_bytes: float
    """Of one token on each rank, with the positions dealt out over all ranks."""
    dealt_pool_bytes: int


@dataclass(frozen=True)
class Disk:
    """Bytes on every host."""

    model_bytes: int
    drafter_bytes: int
    prefix_token_bytes: float
    """What a prefix cache writes for a token, the rank's part of every paged tensor."""
    prefix_bytes: int
    """Room that the profile gives the prefix cache (`disk_gib` of its options); 0 when it names none."""

    @property
    def prefix_tokens(self) -> int:
        """Tokens of context that the room holds."""
        return int(self.prefix_bytes / self.prefix_token_bytes)


@dataclass(frozen=True)
class Figures:
    """What the headers tell."""

    headers: str
    """Where they come from."""
    weights: tuple[Weights, ...]
    cache: tuple[CacheRow, ...]
    traffic: tuple[Collective, ...]
    prefill_rows: int
    prefill_sum_bytes: int
    """One exchange of a prompt chunk of so many rows; 0 on one rank."""
    decode: tuple[Decode, ...]
    """Empty while the device's bandwidth is unknown."""
    disk: Disk
    memory: Budget
    drafters: dict[str, Budget]
    """The memory with the drafter that the profile falls back to."""
    remedies: tuple[Remedy, ...]

    def total(self, of: str, mtp: bool = True) -> int:
        """The sum of an attribute of the components, with or without the next-token layers."""
        return sum(getattr(part, of) for part in self.weights if mtp or part.component is not Component.MTP)


@dataclass(frozen=True)
class Plan:
    """What a profile resolves to."""

    profile: str
    source: str
    present: bool
    """The model is on this machine."""
    served_name: str
    providers: dict[str, str]
    missing: tuple[Missing, ...]
    max_context: int
    kv_tokens: int
    kv_dtype: str
    max_sequences: int
    ranks: tuple[str, ...]
    tensor: int
    context: int
    device: str
    declared: bool
    """The profile says how much memory the device has; otherwise it is this machine's."""
    figures: Figures | None
    """None while nothing is known of the model."""

    @property
    def shortfalls(self) -> tuple[str, ...]:
        """Why it would not start as it is planned, a clause each; licences aside."""
        clauses = []
        if self.missing:
            several = "provider is" if len(self.missing) == 1 else "providers are"
            clauses.append(f"{len(self.missing)} {several} not installed")
        if self.figures is not None and not self.figures.memory.fits:
            short = -self.figures.memory.left_bytes / GIB
            clauses.append(f"the memory of a rank is {short:.2f} GiB short of what it needs beside its reserve")
        return tuple(clauses)

    def require(self) -> None:
        """Refuse a start that cannot end well. Raises PluginError or ConfigError.

        Memory stops a start only where the profile declares it: the pool of a CPU takes memory as it fills.
        """
        if self.missing:
            raise PluginError(
                f"{self.profile} cannot start: not installed is {', '.join(map(str, self.missing))}; install what is "
                "in parentheses, or choose others."
            )
        if self.declared and self.shortfalls:
            raise ConfigError(
                f"{self.profile} cannot start: {'; '.join(self.shortfalls)}; --dry-run says what to change."
            )

    def to_dict(self) -> dict[str, Any]:
        plan = {**asdict(self), "shortfalls": list(self.shortfalls)}
        figures = self.figures
        if figures is not None:
            told = plan["figures"]
            told["disk"]["prefix_tokens"] = figures.disk.prefix_tokens
            told["memory"] = _told(figures.memory)
            told["drafters"] = {name: _told(other) for name, other in figures.drafters.items()}
            for entry, remedy in zip(told["remedies"], figures.remedies, strict=True):
                entry["fits"] = remedy.fits
            for entry, one in zip(told["decode"], figures.decode, strict=True):
                entry |= {"roof_tokens_s": one.roof_tokens_s, "expected_tokens_s": one.expected_tokens_s}
            for entry, collective in zip(told["traffic"], figures.traffic, strict=True):
                entry["token_sent_bytes"] = collective.token_sent_bytes
        return plan


def _told(memory: Budget) -> dict[str, Any]:
    return {
        **asdict(memory),
        "total_bytes": memory.total_bytes,
        "left_bytes": memory.left_bytes,
        "fits": memory.fits,
    }


def make_plan(
    profile: Profile,
    providers: dict[str, str],
    missing: tuple[Missing, ...],
    present: bool,
    subject: Subject | None,
) -> Plan:
    """`providers` are the resolved names; `subject` is None while nothing is known of the model.

    Raises ConfigError or CheckpointError when the profile, the headers and the ranks do not fit each other.
    """
    device = profile.device
    ranks = profile.transport.hosts
    return Plan(
        profile=profile.profile.name,
        source=profile.model.source,
        present=present,
        served_name=profile.model.served_name,
        providers=providers,
        missing=missing,
        max_context=profile.engine.max_context,
        kv_tokens=pool_tokens(profile),
        kv_dtype=profile.engine.kv_dtype,
        max_sequences=profile.engine.max_sequences,
        ranks=ranks,
        tensor=profile.parallel.tensor,
        context=profile.parallel.context,
        device=device.name or "this machine",
        declared=device.memory_gib > 0,
        figures=None if subject is None else _figures(profile, subject),
    )


def _figures(profile: Profile, subject: Subject) -> Figures:
    tensor, context = profile.parallel.tensor, profile.parallel.context
    glm = subject.glm()
    weights = subject.weights(tensor)
    device = profile.device
    device_bytes = round(device.memory_gib * GIB) if device.memory_gib else psutil.virtual_memory().total
    memory = budget(profile, subject, weights, device_bytes)
    mtp = profile.drafter.name == NEXT_TOKEN
    cache = subject.cache(profile.engine.kv_dtype, mtp)
    traffic = () if glm is None else glm_traffic(glm, tensor, context)
    drafter = drafter_model(profile)
    if drafter is not None and glm is not None:
        check_target(drafter, glm.hidden, glm.vocab_size)
    runnable = next_token_drafts(weights)
    if mtp and not runnable:
        raise CheckpointError(
            f"Drafter {NEXT_TOKEN!r} runs the model's own next-token layer, and {subject.checkpoint.path} has none; "
            "choose another drafter."
        )
    fallback = profile.drafter.fallback
    idle = ("", profile.drafter.name) if runnable else ("", profile.drafter.name, NEXT_TOKEN)
    others = {} if fallback in idle else {fallback: profile.with_drafter(fallback)}
    return Figures(
        headers=subject.headers,
        weights=weights,
        cache=_cache_rows(profile, subject, mtp),
        traffic=traffic,
        prefill_rows=profile.engine.prefill_chunk,
        prefill_sum_bytes=_prefill(glm, profile),
        decode=_decode(profile, weights, cache, traffic),
        disk=Disk(
            model_bytes=sum(part.stored_bytes for part in weights),
            drafter_bytes=0 if drafter is None else drafter.weights_bytes,
            prefix_token_bytes=sum(entry.rank_token_bytes(tensor, context) for entry in cache),
            prefix_bytes=_prefix_bytes(profile),
        ),
        memory=memory,
        drafters={name: budget(other, subject, weights, device_bytes) for name, other in others.items()},
        remedies=() if memory.fits else remedies(profile, subject, weights, memory),
    )


def _prefix_bytes(profile: Profile) -> int:
    room = profile.cache.options.get("disk_gib", 0)
    if isinstance(room, bool) or not isinstance(room, int | float) or not 0 <= room < 1 << 40:
        raise ConfigError(f"{profile.where('cache.options')}: disk_gib is {room!r}; a number of GiB is needed.")
    return round(room * GIB)


def _cache_rows(profile: Profile, subject: Subject, mtp: bool) -> tuple[CacheRow, ...]:
    tensor, tokens = profile.parallel.tensor, pool_tokens(profile)
    return tuple(
        CacheRow(
            kv_dtype=kv_dtype,
            token_bytes=sum(entry.token_bytes for entry in cache),
            whole_pool_bytes=pool_bytes(cache, tokens, tensor, 1),
            dealt_token_bytes=sum(entry.rank_token_bytes(tensor, tensor) for entry in cache),
            dealt_pool_bytes=pool_bytes(cache, tokens, tensor, tensor),
        )
        for kv_dtype, cache in subject.caches(mtp).items()
    )


def _prefill(glm: GlmConfig | None, profile: Profile) -> int:
    alone = glm is None or profile.parallel.tensor == 1
    return 0 if alone or glm is None else prefill_sum_bytes(glm, profile.engine.prefill_chunk)


def _decode(
    profile: Profile, weights: tuple[Weights, ...], cache: tuple[CacheEntry, ...], traffic: tuple[Collective, ...]
) -> tuple[Decode, ...]:
    if not profile.device.bandwidth_gb_s:
        return ()
    parallel = profile.parallel
    contexts = sorted({min(SHORT_CONTEXT, profile.engine.max_context), profile.engine.max_context})
    return tuple(
        decode(weights, cache, traffic, tokens, parallel.tensor, parallel.context, profile.device)
        for tokens in contexts
    )
