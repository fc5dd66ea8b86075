"""`glmserve run`: from a profile to a server, or to its plan."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from glmserve.clearance import Clearance
    from glmserve.deployment import Plan
    from glmserve.engine.engine import Engine
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
    form: str,
) -> None:
    """Serve a model over HTTP."""
    if form == "json" and not dry_run:
        raise click.UsageError("--format belongs to --dry-run, which prints the plan.")
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

        _print_plan(plan(profile, plugins), clearance, form)
        return
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
    plan(profile, plugins)
    clearance.require()

    def load() -> tuple[Engine, TokenizerBundle, str]:
        deployment = build(profile, plugins)
        return deployment.engine, deployment.tokenizer, profile.model.served_name

    serve(ServerSettings(**profile.server.model_dump()), load, Licenses.model_validate(clearance.to_dict()))


def _print_plan(plan: Plan, clearance: Clearance, form: str) -> None:
    if form == "json":
        click.echo(json.dumps({**plan.to_dict(), "licenses": clearance.to_dict()}, indent=2))
        return
    rows = [
        ("profile", plan.profile),
        ("model", f"{plan.served_name} from {plan.source}"),
        *plan.providers.items(),
        ("context", f"{plan.max_context} tokens"),
        ("KV pool", f"{plan.kv_tokens} tokens"),
        ("ranks", ", ".join(plan.ranks)),
    ]
    if plan.memory is not None:
        m = plan.memory
        rows.append(("weights", f"{m.weights_bytes / 2**20:.1f} MiB per rank"))
        rows.append(("KV memory", f"{m.kv_bytes / 2**20:.1f} MiB per rank when full"))
        rows.append(("total", f"{m.total_bytes / 2**20:.1f} MiB per rank"))
    else:
        rows.append(("memory", "not known until the model is here"))
    rows.append(("licences", f"{clearance.verdict.slug} for {clearance.use}"))
    rows += [("", f"{entry['license']}: {entry['id']}") for entry in clearance.to_dict()["components"]]
    rows += [("", said) for said in (clearance.announcement, clearance.refusal) if said]
    for key, value in rows:
        click.echo(f"{key:<14}{value}")
