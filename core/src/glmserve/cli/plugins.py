"""`glmserve plugins`."""

from __future__ import annotations

import json

import click
from rich.console import Console
from rich.table import Table


@click.command("plugins")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
def plugins_command(form: str) -> None:
    """List the installed providers of every seam."""
    from glmserve.plugins import load_plugins

    records = load_plugins().describe()
    if form == "json":
        click.echo(json.dumps([record.to_dict() for record in records], indent=2))
        return
    table = Table(box=None)
    for column in ("name", "kind", "distribution", "version", "licence", "capabilities"):
        table.add_column(column)
    for r in records:
        table.add_row(r.name, r.kind, r.distribution, r.version, r.license, ", ".join(r.capabilities))
    Console().print(table)
