"""From samples to figures, and a description of the machine they were taken on."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

from .client import Sample


@dataclass(frozen=True)
class Figures:
    """One wave of requests, or the medians over several. Times in ms, rates in tokens per second over the wave."""

    prompt_tokens: float
    """Of one request."""
    ttft_ms: float
    """From sending a request to its first text; the median over the wave."""
    prefill_tps: float
    """Prompt tokens of the wave, over the time from the first request to the last first text."""
    decode_tps: float
    """Tokens after each request's first, over the time from the first first text to the last end."""
    gap_p50_ms: float
    """Between events that brought text. A drafted step brings several tokens in one event."""
    gap_p99_ms: float
    accepted: float
    """Share of the tokens that a drafter proposed, 0 to 1."""


def figures(samples: Sequence[Sample]) -> Figures:
    """The figures of one wave; every sample must be free of error."""
    begin = min(s.sent for s in samples)
    firsts = [s.arrivals[0] for s in samples]
    gaps = sorted(b - a for s in samples for a, b in zip(s.arrivals, s.arrivals[1:], strict=False))
    completion = sum(s.completion_tokens for s in samples)
    decode_s = max(s.ended for s in samples) - min(firsts)
    return Figures(
        prompt_tokens=sum(s.prompt_tokens for s in samples) / len(samples),
        ttft_ms=1e3 * median(s.arrivals[0] - s.sent for s in samples),
        prefill_tps=sum(s.prompt_tokens for s in samples) / (max(firsts) - begin),
        decode_tps=(completion - len(samples)) / decode_s if decode_s > 0 else 0.0,
        gap_p50_ms=1e3 * quantile(gaps, 0.5),
        gap_p99_ms=1e3 * quantile(gaps, 0.99),
        accepted=sum(s.accepted_tokens for s in samples) / completion,
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of `ordered` (ascending) does not exceed; 0 when there is none."""
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)] if ordered else 0.0


def medians(waves: Sequence[Figures]) -> Figures:
    """Each figure's median over waves of the same kind; at least one wave."""
    rows = [asdict(wave) for wave in waves]
    return Figures(**{name: median(row[name] for row in rows) for name in rows[0]})


def machine() -> dict[str, Any]:
    """Processor model, cores, memory in bytes and system of this machine."""
    import psutil

    return {
        "cpu": _processor(),
        "cores": psutil.cpu_count(logical=False) or 1,
        "threads": psutil.cpu_count() or 1,
        "memory_bytes": psutil.virtual_memory().total,
        "system": platform.platform(),
        "load_1m": psutil.getloadavg()[0],
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


def versions(*packages: str) -> dict[str, str]:
    """Versions of Python and of those of `packages` that are installed."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
