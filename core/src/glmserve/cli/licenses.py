"""`glmserve licenses`: may I do this with that?"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from glmserve.api import ConfigError

from .audited import assembly_options, audited, catalogue_for, source_date_epoch

if TYPE_CHECKING:
    from glmserve.licensing.catalogue import Catalogue
    from glmserve.licensing.report import Report

USES = ("run-local", "run-commercial", "redistribute-source", "redistribute-image", "publish-weights")
THRESHOLDS = ("conditions", "action", "unknown", "deny", "never")
INTEGRITY_EXIT = 3
PIPE_WIDTH = 110
"""Columns of a table that no terminal shows."""


class DefaultGroup(click.Group):
    """A group whose first command also runs when none is named: `glmserve licenses local` is `licenses audit local`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = [next(iter(self.commands)), *args]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group("licenses", cls=DefaultGroup)
def licenses_command() -> None:
    """Say what licences allow: run, earn with, pass on. Engineering, not legal advice.

    `glmserve licenses [PROFILE]` audits a profile; the commands below look closer.
    """


@licenses_command.command("audit")
@click.argument("profile", default="local")
@click.option("--use", "uses", multiple=True, type=click.Choice(USES), help="Judge this use; may be repeated. [all]")
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json", "markdown", "spdx", "cyclonedx"]),
    default="table",
    show_default=True,
)
@click.option("--fail-on", type=click.Choice(THRESHOLDS), default="action", show_default=True,
              help="The mildest verdict that ends with exit code 1.")  # fmt: skip
@click.option("--commercial", is_flag=True, help="Judge passing on as done for a commercial purpose.")
@click.option("--service", is_flag=True, help="Third parties reach the model over an API.")
@click.option("--strict", is_flag=True, help="Count what users fetch themselves as if it were passed on.")
@click.option("--env", "environment", is_flag=True, help="Count every installed Python distribution in all uses.")
@click.option("--python", type=click.Path(exists=True, path_type=Path),
              help="With --env: audit this interpreter, or this site-packages directory, instead.")  # fmt: skip
@assembly_options
@click.pass_context
def audit_command(
    context: click.Context,
    profile: str,
    uses: tuple[str, ...],
    form: str,
    fail_on: str,
    commercial: bool,
    service: bool,
    strict: bool,
    environment: bool,
    python: Path | None,
    policy_file: Path | None,
    drafter: str | None,
    overrides: tuple[str, ...],
) -> None:
    """Judge every component of PROFILE, a shipped name or a file, under every use.

    Exit codes: 0 nothing at or above --fail-on, 1 something is, 2 wrong usage or policy, 3 bytes are not what they
    should be.
    """
    if python is not None and not environment:
        raise click.UsageError("--python belongs to --env.")
    from glmserve.licensing.audit import Question
    from glmserve.licensing.interpreter import search_path
    from glmserve.licensing.report import Use

    if service:
        overrides = (*overrides, "licenses.service=true")
    question = Question(
        uses=tuple(Use(use) for use in uses) or tuple(Use),
        commercial=commercial,
        strict=strict,
        environment=environment,
    )
    paths = None if python is None else search_path(python)
    assembly, report = audited(
        profile, question, policy_file, drafter, overrides, environment=environment, python_paths=paths
    )
    _print(report, form, catalogue_for(assembly))
    context.exit(_exit_code(report, fail_on))


@licenses_command.command("show")
@click.argument("license_id", metavar="LICENCE")
@click.option("--text", "whole", is_flag=True, help="Print the licence text alone.")
def show_command(license_id: str, whole: bool) -> None:
    """Say in plain words what a licence of the catalogue permits and asks for."""
    from glmserve.licensing.catalogue import load_catalogue
    from glmserve.licensing.explain import describe_terms
    from glmserve.licensing.expressions import License, MalformedExpression, parse

    catalogue = load_catalogue()
    try:
        license = parse(license_id)
    except MalformedExpression as error:
        raise ConfigError(f"{license_id!r} is no licence identifier: {error}.") from None
    terms = catalogue.find(license) if isinstance(license, License) else None
    if not isinstance(license, License) or terms is None:
        known = ", ".join(row.id for row in catalogue.rows)
        raise ConfigError(f"{license} is not in the catalogue; it has {known}.")
    if not whole:
        click.echo("\n".join(describe_terms(license, terms)))
        return
    text = catalogue.text(license)
    if text is None:
        where = f"; read it at {terms.canonical_url}" if terms.canonical_url else ""
        raise ConfigError(f"The text of {license} is not shipped: no person has compared it yet{where}.")
    click.echo(text.text)


@licenses_command.command("explain")
@click.argument("what", metavar="ID|FILE")
@click.option("--profile", default="local", show_default=True, help="The assembly to look in.")
@assembly_options
def explain_command(
    what: str, profile: str, policy_file: Path | None, drafter: str | None, overrides: tuple[str, ...]
) -> None:
    """Say which declaration, which terms and which ancestor decide about a component or a file."""
    from glmserve.licensing.audit import Question
    from glmserve.licensing.explain import explain_component, owner_of_file

    assembly, report = audited(profile, Question(), policy_file, drafter, overrides)
    ids = {row.component.id for row in report.rows}
    if what not in ids:
        what, why = owner_of_file(Path(what), [*assembly.components, *assembly.ancestors])
        click.echo(f"{why}.")
    if what in ids:
        click.echo("\n".join(explain_component(report.find(what), catalogue_for(assembly))))
    else:
        click.echo(f"It belongs to {what}, which is no part of the profile {report.profile}.")


@licenses_command.command("accept")
@click.argument("component_id", metavar="ID")
@click.option("--accept", "tokens", multiple=True, metavar="LICENCE@sha256:HEX", help="Accept without being asked.")
@click.option("--actor", help="Who accepts. [your login name]")
@click.option("--profile", default="four-spark", show_default=True, help="The assembly that the component is part of.")
@assembly_options
def accept_command(
    component_id: str,
    tokens: tuple[str, ...],
    actor: str | None,
    profile: str,
    policy_file: Path | None,
    drafter: str | None,
    overrides: tuple[str, ...],
) -> None:
    """Show the licence text of a component and record that you accept it."""
    import getpass

    from glmserve.licensing.acceptance import accept, check_token, default_file
    from glmserve.licensing.audit import Question
    from glmserve.licensing.found import texts_to_accept

    assembly, report = audited(profile, Question(), policy_file, drafter, overrides)
    catalogue = catalogue_for(assembly)
    component = next((c for c in (*assembly.components, *assembly.ancestors) if c.id == component_id), None)
    if component is None:
        raise ConfigError(f"No component of the profile {report.profile} is called {component_id!r}.")
    for license, text in texts_to_accept(component, catalogue):
        wanted = f"{license}@sha256:{text.sha256[:12]}"
        if tokens:
            matching = [token for token in tokens if token.partition("@")[0].casefold() == str(license).casefold()]
            check_token(matching[0] if matching else tokens[0], str(license), text)
        elif sys.stdin.isatty():
            click.echo(text.text)
            click.confirm(f"Accept {license} ({wanted}) for {component.manifest.name}?", abort=True, err=True)
        else:
            click.echo(text.text)
            raise ConfigError(f"Nobody is there to be asked; read the text, then give --accept {wanted}.")
    for license, text in texts_to_accept(component, catalogue):
        accept(
            default_file(),
            component.manifest,
            str(license),
            text,
            uses=USES,
            facts=assembly.section.facts.shown(),
            tool=f"glmserve {report.versions['glmserve']}",
            catalogue=catalogue.version,
            actor=actor or getpass.getuser(),
        )
        click.echo(f"Recorded: {component.id}, {license}, in {default_file()}.", err=True)


@licenses_command.command("verify")
@click.argument("profile", default="local")
@assembly_options
@click.pass_context
def verify_command(
    context: click.Context, profile: str, policy_file: Path | None, drafter: str | None, overrides: tuple[str, ...]
) -> None:
    """Hash every file of PROFILE's components and distributions, and check texts and acceptances."""
    from glmserve.licensing.audit import Question
    from glmserve.licensing.explain import integrity_lines
    from glmserve.store.progress import show_progress

    with show_progress() as progress:
        _, report = audited(profile, Question(), policy_file, drafter, overrides, progress=progress)
    for line in integrity_lines(report):
        click.echo(line)
    context.exit(0 if report.intact and report.records_intact else INTEGRITY_EXIT)


@licenses_command.command("check-wheel")
@click.argument("wheels", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.pass_context
def check_wheel_command(context: click.Context, wheels: tuple[Path, ...]) -> None:
    """Check wheels before they are published: expression, licence texts, RECORD, no weights."""
    from glmserve.licensing.report import INTEGRITY, Verdict
    from glmserve.licensing.wheel.check import check_wheel

    code = 0
    for wheel in wheels:
        findings = check_wheel(wheel)
        click.echo(f"{wheel.name}: {'sound' if not findings else f'{len(findings)} findings'}")
        for finding in findings:
            click.echo(f"  {finding.code}: {finding.message}")
        if any(finding.code in INTEGRITY for finding in findings):
            code = INTEGRITY_EXIT
        elif any(finding.verdict >= Verdict.ACTION for finding in findings):
            code = max(code, 1)
    context.exit(code)


@licenses_command.command("notices")
@click.argument("profile", default="local")
@click.option("-o", "notice_file", type=click.Path(dir_okay=False, path_type=Path), help="Where NOTICE goes. [stdout]")
@click.option("--third-party", "third_party_file", type=click.Path(dir_okay=False, path_type=Path),
              help="Where THIRD_PARTY_NOTICES.md goes.")  # fmt: skip
@assembly_options
def notices_command(
    profile: str,
    notice_file: Path | None,
    third_party_file: Path | None,
    policy_file: Path | None,
    drafter: str | None,
    overrides: tuple[str, ...],
) -> None:
    """Write the NOTICE of PROFILE, and a table with every licence text that its parts need."""
    from glmserve.licensing.audit import Question
    from glmserve.licensing.outputs.notices import notice, third_party

    assembly, report = audited(profile, Question(), policy_file, drafter, overrides)
    text = notice(report)
    if notice_file is None:
        click.echo(text, nl=False)
    else:
        _write(notice_file, text)
    if third_party_file is not None:
        _write(third_party_file, third_party(report, catalogue_for(assembly).text_of))


def _print(report: Report, form: str, catalogue: Catalogue) -> None:
    from glmserve.licensing.outputs import cyclonedx, spdx
    from glmserve.licensing.outputs.exports import serialise
    from glmserve.licensing.outputs.render import markdown, table
    from glmserve.licensing.outputs.report_json import to_json

    if form == "table":
        click.echo(table(report, shutil.get_terminal_size((PIPE_WIDTH, 0)).columns), nl=False)
    elif form == "markdown":
        click.echo(markdown(report), nl=False)
    else:
        epoch = source_date_epoch()
        if form == "json":
            document = to_json(report)
        elif form == "spdx":
            document = spdx.document(report, catalogue.text_of, epoch=epoch)
        else:
            document = cyclonedx.document(report, catalogue.text_of, epoch=epoch)
        click.echo(serialise(document), nl=False)


def _exit_code(report: Report, fail_on: str) -> int:
    if not report.intact:
        return INTEGRITY_EXIT
    if fail_on == "never":
        return 0
    return int(max(report.verdicts.values(), default=0) > THRESHOLDS.index(fail_on))


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}.") from None
