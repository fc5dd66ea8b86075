"""The memory of a rank: what needs it, what has to stay free, and what to change when both do not fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from glmserve.profiles import Profile

from .components import Component
from .subject import NEXT_TOKEN, Subject, drafter_model, pool_bytes, pool_tokens
from .weights import Weights

GIB = 2**30


@dataclass(frozen=True)
class Budget:
    """Bytes on one rank."""

    device_bytes: int
    weights_bytes: int
    drafter_bytes: int
    """A drafter's own model, and its state for every conversation that may run."""
    kv_bytes: int
    """The cache when it is full."""
    reserve_bytes: dict[str, int]

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.drafter_bytes + self.kv_bytes

    @property
    def left_bytes(self) -> int:
        """What is free beside the reserve; negative when that much is missing."""
        return self.device_bytes - self.total_bytes - sum(self.reserve_bytes.values())

    @property
    def fits(self) -> bool:
        return self.left_bytes >= 0


@dataclass(frozen=True)
class Remedy:
    """A change of the profile that helps, alone: each key with its new value."""

    change: dict[str, str]
    left_bytes: int

    @property
    def fits(self) -> bool:
        return self.left_bytes >= 0


def next_token_drafts(weights: Iterable[Weights]) -> bool:
    """The checkpoint has the layer that drafter `mtp` runs: some converters drop it."""
    return any(part.component is Component.MTP for part in weights)


def budget(profile: Profile, subject: Subject, weights: Iterable[Weights], device_bytes: int) -> Budget:
    """The profile's, on a device of `device_bytes`."""
    mtp = profile.drafter.name == NEXT_TOKEN
    held = sum(part.rank_bytes for part in weights if mtp or part.component is not Component.MTP)
    drafter = drafter_model(profile)
    own = 0 if drafter is None else drafter.weights_bytes + drafter.state_bytes * profile.engine.max_sequences
    cache = subject.cache(profile.engine.kv_dtype, mtp)
    kv = pool_bytes(cache, pool_tokens(profile), profile.parallel.tensor, profile.parallel.context)
    reserve = {name: round(gib * GIB) for name, gib in profile.device.reserve_gib.items()}
    return Budget(device_bytes, held, own, kv, reserve)


def remedies(profile: Profile, subject: Subject, weights: tuple[Weights, ...], now: Budget) -> tuple[Remedy, ...]:
    """What helps a budget that does not fit: what fits alone first, then what saves most."""
    found = []
    for change, changed in _changes(profile, subject):
        if changed.drafter.name == NEXT_TOKEN and not next_token_drafts(weights):
            continue
        other = budget(changed, subject, weights, now.device_bytes)
        if other.left_bytes > now.left_bytes:
            found.append(Remedy(change, other.left_bytes))
    found += [*_fewer_tokens(profile, now), *_narrower_experts(weights, now)]
    # What fits comes first, and of that what leaves the pool as large as it is.
    return tuple(
        sorted(found, key=lambda r: (not r.fits, "engine.kv_tokens" in r.change, len(r.change), -r.left_bytes))
    )


def _changes(profile: Profile, subject: Subject) -> Iterator[tuple[dict[str, str], Profile]]:
    mtp = profile.drafter.name == NEXT_TOKEN
    parallel = profile.parallel
    now = sum(entry.token_bytes for entry in subject.cache(profile.engine.kv_dtype, mtp))
    sizes = {t: sum(entry.token_bytes for entry in cache) for t, cache in subject.caches(mtp).items()}
    types = [t for t in sizes if t != "float16" and sizes[t] < now]  # as large as bfloat16, with less range
    shares = [n for n in range(parallel.context + 1, parallel.tensor + 1) if parallel.tensor % n == 0]
    typed = {t: profile.engine.model_copy(update={"kv_dtype": t}) for t in types}
    shared = {n: parallel.model_copy(update={"context": n}) for n in shares}
    for t, engine in typed.items():
        yield {"engine.kv_dtype": t}, profile.model_copy(update={"engine": engine})
    for n, section in shared.items():
        yield {"parallel.context": str(n)}, profile.model_copy(update={"parallel": section})
    for t, engine in typed.items():
        for n, section in shared.items():
            both = profile.model_copy(update={"engine": engine, "parallel": section})
            yield {"engine.kv_dtype": t, "parallel.context": str(n)}, both
    for name in dict.fromkeys(filter(None, (profile.drafter.fallback, "none"))):
        yield {"drafter.name": name}, profile.with_drafter(name)


def _fewer_tokens(profile: Profile, now: Budget) -> Iterator[Remedy]:
    room = now.kv_bytes + now.left_bytes
    page, pool = profile.engine.page_tokens, pool_tokens(profile)
    tokens = int(pool * room / now.kv_bytes) // page * page if now.kv_bytes else 0
    if tokens > 0:
        change = {"engine.kv_tokens": str(tokens)}
        if profile.engine.max_context > tokens:
            change["engine.max_context"] = str(tokens)
        yield Remedy(change, room - round(now.kv_bytes * tokens / pool))


def _narrower_experts(weights: Iterable[Weights], now: Budget) -> Iterator[Remedy]:
    routed = next((part for part in weights if part.component is Component.ROUTED), None)
    if routed is None or now.fits:
        return
    bits = 8 * routed.stored_bytes / routed.parameters
    # Down to what is missing and no further; below 2 bits no pack is worth having.
    fewer = int(100 * bits * (1 + now.left_bytes / routed.rank_bytes)) / 100
    if fewer >= 2:
        left = now.left_bytes + round(routed.rank_bytes * (1 - fewer / bits))
        yield Remedy({"model.source": f"a pack whose experts take at most {fewer:.2f} bits a weight"}, left)
