"""Aligned columns for people and for grep: every value whole, whatever the terminal's width."""

from __future__ import annotations

from collections.abc import Sequence

import click


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print `rows` (one string a column) under a line of column names."""
    lines = [columns, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    for line in lines:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
