"""What the README shows as printed is what is printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.core.distributions import glmserve

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")


def blocks() -> list[list[str]]:
    """The audits in the README, by lines."""
    found = re.findall(r"```\n(What the licences of .*?)```", README, re.DOTALL)
    return [text.splitlines() for text in found]


def without_environment(lines: list[str]) -> list[str]:
    """Only what does not depend on which releases are installed: the table of the components."""
    table = lines[: next(i for i, line in enumerate(lines) if line.startswith("ok: "))]
    return [
        " ".join(line.split())
        for line in table
        if "Python distributions" not in line and "py-" not in line and "---" not in line
    ]


@pytest.mark.parametrize(
    ("index", "arguments"),
    [(0, ["local"]), (1, ["four-spark"]), (2, ["four-spark", "--drafter", "mtp", "--use", "run-commercial"])],
)
def test_the_audits_are_shown_as_they_print(index: int, arguments: list[str], tmp_path: Path) -> None:
    printed = glmserve("licenses", *arguments, "--fail-on", "never", COLUMNS="110", GLMSERVE_HOME=str(tmp_path)).stdout
    assert without_environment(blocks()[index]) == without_environment(printed.splitlines())


def test_every_page_that_the_readme_links_to_is_there() -> None:
    for target in re.findall(r"\]\(((?!http)[^)#]+)\)", README):
        assert (ROOT / target).is_file(), target
