"""`glmserve run`: from a profile to a server, or to its plan."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from glmserve.clearance import Clearance
    from glmserve.engine.engine import Engine
    from glmserve.planning.plan import Plan
    from glmserve.plugins import Plugins
    from glmserve.profiles import Profile
    from glmserve.store.tokenizer import TokenizerBundle


@click.command("run")
@click.option("--profile", "name", default="local", show_default=True, help="Shipped name, or a TOML file.")
@click.option("--host", help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on; 0 picks a free one.")
@click.option("--api-key-file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="One key per line.")
@click.option("--drafter", help="Drafter provider, as `glmserve plugins` lists them.")
@click.option("--purpose", type=click.Choice(["noncommercial", "commercial"]), help="What the model is run for.")
@click.option("--set", "overrides", multiple=True, metavar="SECTION.KEY=VALUE", help="Override a key; may be repeated.")
@click.option("--dry-run", is_flag=True, help="Print what would run, without loading or fetching anything.")
@click.option("--fetch-headers", is_flag=True, help="With --dry-run: read the headers of an hf: source from the hub.")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
def run_command(
    name: str,
    host: str | None,
    port: int | None,
    api_key_file: Path | None,
    drafter: str | None,
    purpose: str | None,
    overrides: tuple[str, ...],
    dry_run: bool,
    fetch_headers: bool,
    form: str,
) -> None:
    """Serve a model over HTTP.

    --dry-run prints the plan and uses no network, unless --fetch-headers asks for it. It ends with 1 when the plan says
    that the start would be refused, or that the memory does not suffice.
    """
    if not dry_run and (form == "json" or fetch_headers):
        flag = "--format" if form == "json" else "--fetch-headers"
        raise click.UsageError(f"{flag} belongs to --dry-run, which prints the plan.")
    from glmserve.profiles import load_profile

    flags = [
        ("--host", "server.host", host),
        ("--port", "server.port", port),
        ("--api-key-file", "server.api_key_file", api_key_file and str(api_key_file)),
        ("--drafter", "drafter.name", drafter),
        ("--purpose", "licenses.facts.purpose", purpose),
    ]
    profile = load_profile(name, overrides, flags=[flag for flag in flags if flag[2] is not None])
    _set_threads_policy()
    from glmserve.plugins import load_plugins

    plugins = load_plugins(profile.plugin_files)
    from glmserve.clearance import clear

    clearance = clear(profile)
    if clearance.drafter != profile.drafter.name:
        profile = profile.with_drafter(clearance.drafter)
    if dry_run:
        from glmserve.deployment import plan
        from glmserve.store.progress import show_progress

        with show_progress() as asked:
            planned = plan(profile, plugins, fetch_headers=fetch_headers, progress=asked)
        _print_plan(planned, clearance, form)
        sys.exit(1 if planned.shortfalls or clearance.refusal else 0)
    _serve(profile, plugins, clearance)


def _set_threads_policy() -> None:
    # Idle OpenMP threads spin by default and take the core from the others; torch reads this as it is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def _serve(profile: Profile, plugins: Plugins, clearance: Clearance) -> None:
    import psutil
    import torch

    from glmserve.deployment import build, plan
    from glmserve.server.app import ServerSettings
    from glmserve.server.run import serve
    from glmserve.server.status import Licenses

    torch.set_num_threads(profile.engine.threads or psutil.cpu_count(logical=False) or 1)
    # What is wrong with the profile, or not allowed, is said before a socket is bound and anything is fetched.
    plan(profile, plugins).require()
    clearance.require()

    def load() -> tuple[Engine, TokenizerBundle, str]:
        deployment = build(profile, plugins)
        return deployment.engine, deployment.tokenizer, profile.model.served_name

    settings = profile.server.model_dump() | {"max_body_bytes": profile.max_body_bytes}
    serve(ServerSettings(**settings), load, Licenses.model_validate(clearance.to_dict()))


def _print_plan(plan: Plan, clearance: Clearance, form: str) -> None:
    told = clearance.to_dict()
    if form == "json":
        click.echo(json.dumps({**plan.to_dict(), "licenses": told}, indent=2))
        return
    from glmserve.planning.table import labelled, render

    by_license: dict[str, list[str]] = {}
    for entry in told["components"]:
        by_license.setdefault(entry["license"] or "no licence", []).append(entry["id"])
    reason = clearance.announcement or clearance.refusal
    # Its first sentence: the reasons, with the ways out of each, fill a screen of their own.
    said = f"{reason.partition('. ')[0]}: see `glmserve licenses {plan.profile}`." if reason else ""
    refused = (*plan.shortfalls, *(("the licences do not let it start",) if clearance.refusal else ()))
    lines = [
        *render(plan),
        *labelled("licences", f"{clearance.verdict.slug} for {clearance.use}"),
        *(line for license, ids in by_license.items() for line in labelled("", f"{license}: {', '.join(ids)}")),
        *labelled("", said),
        *labelled("start", f"refused: {'; '.join(refused)}" if refused else "ok"),
    ]
    click.echo("\n".join(lines))
