"""What every command that audits a profile shares: its options, and the way from a profile to a report."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from glmserve.api import ConfigError

if TYPE_CHECKING:
    from glmserve.assembly import Assembly
    from glmserve.licensing.audit import Question
    from glmserve.licensing.catalogue import Catalogue
    from glmserve.licensing.report import Report


def assembly_options(command: Any) -> Any:
    for option in (
        click.option("--policy", "policy_file", type=click.Path(exists=True, dir_okay=False, path_type=Path),
                     help="Facts, organisation policy, exceptions and grants, besides the profile's [licenses]."),
        click.option("--drafter", help="Judge the profile with this drafter."),
        click.option("--set", "overrides", multiple=True, metavar="SECTION.KEY=VALUE",
                     help="Override a key of the profile; may be repeated."),
    ):  # fmt: skip
        command = option(command)
    return command


def audited(
    profile: str,
    question: Question,
    policy_file: Path | None,
    drafter: str | None,
    overrides: tuple[str, ...],
    **options: Any,
) -> tuple[Assembly, Report]:
    from glmserve.assembly import assemble, audit_profile
    from glmserve.licensing.policy import load_policy, writable_by_others
    from glmserve.profiles import load_profile

    flags = [("--drafter", "drafter.name", drafter)] if drafter else []
    loaded = load_profile(profile, overrides, flags=flags)
    policy = load_policy(policy_file) if policy_file is not None else None
    if policy_file is not None and writable_by_others(policy_file):
        click.echo(f"glmserve: every user of this machine can change {policy_file}.", err=True)
    assembly = assemble(loaded, policy=policy, **options)
    report = audit_profile(assembly, question, policies=() if policy is None else (policy.policy,))
    return assembly, report


def catalogue_for(assembly: Assembly) -> Catalogue:
    from glmserve.assembly import catalogue_of

    return catalogue_of(assembly.section)


def source_date_epoch() -> int | None:
    """The seconds since 1970 that documents give as their time, when SOURCE_DATE_EPOCH says so. Raises ConfigError."""
    stamp = os.environ.get("SOURCE_DATE_EPOCH")
    if stamp is None:
        return None
    if not (stamp.isascii() and stamp.isdigit()):
        raise ConfigError(f"SOURCE_DATE_EPOCH is {stamp!r}; it has to be a number of seconds, or unset.")
    return int(stamp)
