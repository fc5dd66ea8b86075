"""The whole measurement of one server: every prompt at every concurrency, warmed up, repeated, reduced to medians."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .client import Sample, wave
from .prompts import PROMPTS, prompt
from .report import Figures, figures, medians

CONCURRENCY = (1, 8)
OUTPUT_TOKENS = 64
WARM_TOKENS = 4


@dataclass(frozen=True)
class Case:
    """A prompt at a concurrency. `figures` is None when no wave was free of failures."""

    prompt: str
    concurrency: int
    figures: Figures | None
    failures: tuple[str, ...]
    """What went wrong with each failed request. A wave with a failure counts for nothing else."""


def measure(url: str, runs: int, report: Callable[[str], None]) -> list[Case]:
    """Measure the server at `url`; `report` hears what is measured now. Failures of the server are in the cases."""
    cases = []
    for name in PROMPTS:
        for concurrency in CONCURRENCY:
            report(f"prompt {name}, concurrency {concurrency}")
            cases.append(measure_case(url, name, concurrency, runs))
    return cases


def measure_case(url: str, name: str, concurrency: int, runs: int, output_tokens: int = OUTPUT_TOKENS) -> Case:
    """One warm-up wave and `runs` measured ones, each of copies of the prompt that were not sent before."""
    waves: list[Figures] = []
    failures: list[str] = []
    for run in range(runs + 1):
        copies = [prompt(name, run * concurrency + i) for i in range(concurrency)]
        samples = wave(url, copies, output_tokens if run else WARM_TOKENS)
        failures += [sample.error for sample in samples if sample.error is not None]
        if run and _complete(samples):
            waves.append(figures(samples))
    return Case(name, concurrency, medians(waves) if waves else None, tuple(failures))


def _complete(samples: list[Sample]) -> bool:
    return all(sample.error is None for sample in samples)


def settings(runs: int) -> dict[str, Any]:
    """What is fixed, for the result file."""
    return {
        "runs": runs,
        "output_tokens": OUTPUT_TOKENS,
        "concurrency": list(CONCURRENCY),
        "temperature": 0,
        "ignore_eos": True,
        "statistic": "median over runs",
        "prompts": {name: prompt(name, 0) for name in PROMPTS},
    }
