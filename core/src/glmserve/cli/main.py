"""The command `glmserve`: the group, its lazily imported subcommands, and how a refusal reaches the user."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click
from click.shell_completion import get_completion_class

from glmserve.api import GlmserveError

COMMANDS: Mapping[str, tuple[str, str]] = {
    "run": ("glmserve.cli.run:run_command", "Serve a model over HTTP."),
    "chat": ("glmserve.cli.chat:chat_command", "Talk to a running server in the terminal."),
    "bench": ("glmserve.cli.bench:bench_command", "Measure a server: first token, prefill, decode, gaps."),
    "pull": ("glmserve.cli.store:pull_command", "Fetch a model and print its path."),
    "verify": ("glmserve.cli.store:verify_command", "Hash stored models again, and repair them."),
    "score": ("glmserve.cli.score:score_command", "Write a model's logits for a list of token ids."),
    "licenses": ("glmserve.cli.licenses:licenses_command", "Say what licences allow: run, earn with, pass on."),
    "bundle": ("glmserve.cli.bundle:bundle_command", "Pack what may be passed on, and check such a bundle."),
    "plugins": ("glmserve.cli.plugins:plugins_command", "List the installed providers of every seam."),
    "profiles": ("glmserve.cli.profiles:profiles_command", "List the shipped profiles."),
}
"""Subcommands in other modules: name -> ("module:attribute", line of help)."""


class LazyGroup(click.Group):
    """A group whose commands are imported when they are run, so that help and completion cost nothing."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        module, attribute = COMMANDS[cmd_name][0].split(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, line) for name, (_, line) in COMMANDS.items()]
        rows += [(name, command.get_short_help_str()) for name, command in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> Any:
        # Here, because click's own main ends the process with 1 for a pipe whose reader left.
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            return _reader_left()

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any) -> Any:  # type: ignore[override]
        """Run, and end the process: expected failures as one sentence and their own exit code."""
        _open_standard_files()
        try:
            status = super().main(args=args, prog_name=prog_name or "glmserve", **{**extra, "standalone_mode": False})
            sys.stdout.flush()
        except GlmserveError as error:
            click.echo(f"glmserve: {error}", err=True)
            status = error.exit_code
        except click.ClickException as error:
            error.show()
            status = error.exit_code
        except (KeyboardInterrupt, click.Abort):
            status = 130
        except BrokenPipeError:
            status = _reader_left()
        sys.exit(status if isinstance(status, int) else 0)


def _open_standard_files() -> None:
    """Those that whoever started this has closed: the next file would get such a number, and what is printed."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115 - until the end


def _reader_left() -> int:
    """The exit code, after what is still unwritten was sent nowhere: Python would complain as it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="glmserve", prog_name="glmserve")
def main() -> None:
    """Serve large open models. Start with `glmserve run`."""


@main.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion_command(shell: str) -> None:
    """Print the completion script of a shell.

    For example: eval "$(glmserve completion bash)"
    """
    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(main, {}, "glmserve", "_GLMSERVE_COMPLETE")
    # Not script.source(): for bash that runs bash, only to look at its version.
    click.echo(script.source_template % script.source_vars())
