"""`glmserve profiles`."""

from __future__ import annotations

import json

import click

from .table import print_table


@click.command("profiles")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
def profiles_command(form: str) -> None:
    """List the shipped profiles."""
    from glmserve.profiles import shipped_profiles

    entries = shipped_profiles()
    if form == "json":
        rows = [{"name": e.name, "description": e.description, "path": str(e.path)} for e in entries]
        click.echo(json.dumps(rows, indent=2))
        return
    print_table(("name", "description", "path"), [(e.name, e.description, str(e.path)) for e in entries])
