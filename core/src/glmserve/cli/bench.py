"""`glmserve bench`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from glmserve.bench.run import Case

PACKAGES = ("glmserve", "torch", "numpy", "fastapi", "uvicorn", "httpx")


@click.command("bench")
@click.option("--url", help="Address of a running server.")
@click.option("--profile", help="Start a server of this profile instead, and end it. [default: local]")
@click.option("--runs", type=click.IntRange(1, 100), default=3, show_default=True, help="Measured runs of each case.")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the result there too, as JSON.")
def bench_command(url: str | None, profile: str | None, runs: int, form: str, out: Path | None) -> None:
    """Measure a server over HTTP, with fixed prompts and greedy streams."""
    if url and profile:
        raise click.UsageError("Give --url or --profile, not both.")
    from glmserve.bench.process import BenchError, glmserve_command, server

    if url:
        result = _measure(url.rstrip("/"), {"url": url}, runs)
    else:
        name = profile or "local"
        click.echo(f"starting a server of profile {name} ...", err=True)
        with server(glmserve_command(name), "/readyz") as running:
            result = _measure(running.url, {"profile": name, "ready_s": round(running.ready_s, 3)}, runs)
    text = json.dumps(result, indent=2)
    if out is not None:
        try:
            out.write_text(text + "\n")
        except OSError as error:
            raise BenchError(f"Cannot write {out}: {error.strerror}.") from None
    if form == "json":
        click.echo(text)
    else:
        _print(result)
    failed = [failure for case in result["cases"] for failure in case["failures"]]
    if failed:
        raise BenchError(f"{len(failed)} requests failed, the first with: {failed[0]}")


def _measure(url: str, target: dict[str, Any], runs: int) -> dict[str, Any]:
    from datetime import UTC, datetime

    from glmserve.bench.report import machine, versions
    from glmserve.bench.run import measure, settings

    before = machine()
    cases = measure(url, runs, lambda line: click.echo(line, err=True))
    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "target": target,
        "machine": before,
        "versions": versions(*PACKAGES),
        "settings": settings(runs),
        "cases": [_record(case) for case in cases],
    }


def _record(case: Case) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(case)


def _print(result: dict[str, Any]) -> None:
    table = Table(box=None)
    columns = (
        "prompt",
        "tokens",
        "streams",
        "TTFT ms",
        "prefill tok/s",
        "decode tok/s",
        "gap p50 ms",
        "p99 ms",
        "failed",
    )
    for column in columns:
        table.add_column(column, justify="left" if column == "prompt" else "right")
    for case in result["cases"]:
        f = case["figures"]
        if f is None:
            cells = ["-"] * 6
        else:
            names = ("ttft_ms", "prefill_tps", "decode_tps", "gap_p50_ms", "gap_p99_ms")
            cells = [f"{f['prompt_tokens']:.0f}", *(f"{f[name]:.1f}" for name in names)]
        failed = str(len(case["failures"]))
        table.add_row(case["prompt"], cells[0], str(case["concurrency"]), *cells[1:], failed)
    Console().print(table)
