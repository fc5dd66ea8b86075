"""How fast one stream can decode: reading memory is the roof, exchanges between the ranks come on top of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from glmserve.profiles.schema import DeviceSection

from .cache import CacheEntry
from .traffic import Collective
from .weights import Weights


@dataclass(frozen=True)
class Decode:
    """One token of one stream, without drafts, after a context of `context_tokens`."""

    context_tokens: int
    weights_bytes: int
    """Read by each rank; of the routed experts, those of one token."""
    cache_bytes: int
    """Read by each rank: the selected entries, and every index key."""
    exchanges: int
    roof_s: float
    """Reading them at the device's full bandwidth."""
    read_s: float
    """Reading them at the bandwidth that is reached."""
    exchange_s: float

    @property
    def roof_tokens_s(self) -> float:
        return 1 / self.roof_s

    @property
    def expected_tokens_s(self) -> float:
        """Reading and exchanging one after the other, as a single stream does."""
        return 1 / (self.read_s + self.exchange_s)


def decode(
    weights: Iterable[Weights],
    cache: Iterable[CacheEntry],
    traffic: Iterable[Collective],
    context_tokens: int,
    tensor: int,
    context: int,
    device: DeviceSection,
) -> Decode:
    """`device.bandwidth_gb_s` is known, so not 0."""
    weights_bytes = sum(part.read_bytes for part in weights)
    cache_bytes = round(sum(entry.rank_read_bytes(context_tokens, tensor, context) for entry in cache))
    exchanges = sum(collective.count for collective in traffic)
    roof_s = (weights_bytes + cache_bytes) / (device.bandwidth_gb_s * 1e9)
    return Decode(
        context_tokens=context_tokens,
        weights_bytes=weights_bytes,
        cache_bytes=cache_bytes,
        exchanges=exchanges,
        roof_s=roof_s,
        read_s=roof_s / device.bandwidth_reached,
        exchange_s=exchanges * device.collective_us * 1e-6,
    )
