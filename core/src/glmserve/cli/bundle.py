"""`glmserve bundle`: one file with all of a profile that may be passed on."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from glmserve.api import ConfigError

from .audited import assembly_options
from .licenses import INTEGRITY_EXIT, DefaultGroup
from .table import print_table

if TYPE_CHECKING:
    from glmserve.licensing.bundle.archive import Progress
    from glmserve.licensing.bundle.make import BundlePlan

USES = ("redistribute-source", "redistribute-image", "publish-weights")


@click.group("bundle", cls=DefaultGroup)
def bundle_command() -> None:
    """Pack what may be passed on, with licences, notices and SBOMs, and check such a bundle.

    `glmserve bundle PROFILE -o OUT.tar` packs a profile.
    """


@bundle_command.command("make")
@click.argument("profile")
@click.option("-o", "--output", "out", type=click.Path(path_type=Path), metavar="OUT.tar", help="The file to write.")
@click.option("--use", type=click.Choice(USES), default="redistribute-image", show_default=True,
              help="What the bundle is for.")  # fmt: skip
@click.option("--strict/--stub", default=True, show_default="strict",
              help="Refuse what may not go along, or leave a stub from which its user fetches it.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Say what would be packed, or why not, and write nothing.")
@click.option("--commercial", is_flag=True, help="Judge passing on as done for a commercial purpose.")
@assembly_options
def make_command(
    profile: str,
    out: Path | None,
    use: str,
    strict: bool,
    dry_run: bool,
    commercial: bool,
    policy_file: Path | None,
    drafter: str | None,
    overrides: tuple[str, ...],
) -> None:
    """Pack PROFILE, a shipped name or a file, into one tar file.

    Equal inputs give equal bytes; the time in it is SOURCE_DATE_EPOCH, or 0. A refusal names every reason and leaves no
    file.
    """
    if out is None and not dry_run:
        raise click.UsageError("Say where to write the bundle with -o OUT.tar, or only look with --dry-run.")
    epoch_s = _epoch()
    from glmserve.bundling import bundle_inputs
    from glmserve.licensing.bundle.make import make_bundle
    from glmserve.licensing.policy import load_policy
    from glmserve.licensing.report import Use
    from glmserve.profiles import load_profile

    # What stops a container: as an interrupt it leaves no piece of a file.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    loaded = load_profile(profile, overrides, flags=[("--drafter", "drafter.name", drafter)] if drafter else [])
    policy = load_policy(policy_file) if policy_file is not None else None
    with _progress() as progress:
        inputs = bundle_inputs(loaded, Use(use), strict=strict, commercial=commercial, policy=policy, progress=progress)
        plan = make_bundle(
            inputs,
            out or Path("bundle.tar"),
            use=Use(use),
            strict=strict,
            epoch_s=epoch_s,
            dry_run=dry_run,
            progress=progress,
        )
    _print(plan, "would be packed" if dry_run else f"packed in {out}")


@bundle_command.command("verify")
@click.argument("bundle", type=click.Path(path_type=Path), metavar="OUT.tar")
@click.pass_context
def verify_command(context: click.Context, bundle: Path) -> None:
    """Check every byte of a bundle.

    Exits with 3 when anything was added, removed or changed since it was made.
    """
    from glmserve.licensing.bundle.verify import verify_bundle
    from glmserve.licensing.outputs.plain import one_line

    with _progress() as progress:
        findings = verify_bundle(bundle, progress)
    for finding in findings:
        click.echo(one_line(f"{finding.code}: {finding.message}"))
    click.echo(f"{bundle}: {'broken' if findings else 'sound'}")
    if findings:
        context.exit(INTEGRITY_EXIT)


def _epoch() -> int | None:
    text = os.environ.get("SOURCE_DATE_EPOCH", "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise ConfigError(f"SOURCE_DATE_EPOCH is {text!r} and has to be a number of seconds since 1970; correct it.")
    return int(text)


@contextmanager
def _progress() -> Iterator[Progress]:
    """Bars on a terminal; silence elsewhere, so that a log holds the answer alone."""
    if not sys.stderr.isatty():
        yield lambda what, done, total: None
        return
    from glmserve.store.progress import show_progress

    with show_progress() as progress:
        yield progress


def _print(plan: BundlePlan, what: str) -> None:
    index = plan.index
    left_out = dict(plan.stubs)
    rows = []
    for component in index.components:
        reason = left_out.get(component.id)
        files = [file for file in index.files if file.component == component.id]
        said = f"{len(files)} files, {sum(file.size for file in files)} bytes"
        if not component.included:
            said = f"stub: {reason.code if reason is not None else 'its user fetches it from its publisher'}"
        rows.append((component.id, component.kind, component.concluded or component.declared, said))
    click.echo(f"{len(index.files) + 1} files, {plan.size_bytes} bytes {what} for {index.use}: {index.verdict}")
    print_table(("component", "kind", "licence", "content"), rows)
