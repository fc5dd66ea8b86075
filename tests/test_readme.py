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


def plan_shown() -> list[str]:
    """The plan in the README, by lines; "[...]" stands for lines that are left out."""
    (text,) = re.findall(r"```\n(profile       .*?)```", README, re.DOTALL)
    return str(text).splitlines()


def in_order(shown: list[str], printed: list[str]) -> bool:
    """Every part between the marks stands in `printed` as it is, one after the other."""
    text = "\n".join(printed)
    at = 0
    for part in "\n".join(shown).split("\n[...]\n"):
        found = text.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return True


def test_the_plan_is_shown_as_it_prints(tmp_path: Path) -> None:
    ran = glmserve("run", "--profile", "four-spark", "--dry-run", HOME=str(tmp_path), GLMSERVE_HOME=str(tmp_path))
    printed, shown = ran.stdout.splitlines(), plan_shown()
    assert in_order(shown, printed), ran.stdout + ran.stderr
    assert (shown[0], shown[-1]) == (printed[0], printed[-1])
    assert not in_order([line.replace("2.72", "2.73") for line in shown], printed)


def test_the_change_that_the_readme_names_is_the_first_that_is_advised(tmp_path: Path) -> None:
    asked = ("--set", "parallel.context=1")
    assert " ".join(asked) in README
    ran = glmserve("run", "--profile", "four-spark", "--dry-run", *asked, HOME=str(tmp_path))
    (first,) = [line for line in ran.stdout.splitlines() if line.startswith("  change")]
    assert first.split(maxsplit=1)[1].startswith("parallel.context = 4: 2.72 GiB left"), ran.stdout


def test_every_page_that_the_readme_links_to_is_there() -> None:
    for target in re.findall(r"\]\(((?!http)[^)#]+)\)", README):
        assert (ROOT / target).is_file(), target
