"""`glmserve plugins`."""

from __future__ import annotations

import json

import click

from .table import print_table


@click.command("plugins")
@click.option("--profile", "name", help="Also list the single-file plugins of this profile.")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
def plugins_command(name: str | None, form: str) -> None:
    """List the installed providers of every seam."""
    from glmserve.plugins import load_plugins
    from glmserve.profiles import load_profile

    records = load_plugins(load_profile(name).plugin_files if name else ()).describe()
    if form == "json":
        click.echo(json.dumps([record.to_dict() for record in records], indent=2))
        return
    columns = ("name", "kind", "distribution", "version", "licence", "capabilities")
    rows = [(r.name, r.kind, r.distribution, r.version, r.license, ", ".join(r.capabilities)) for r in records]
    print_table(columns, rows)
