"""The measurement of a step's cost against the length of its context runs, and its plot is one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

SCRIPT = Path(__file__).parents[2] / "bench" / "context_cost.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, check=False)


def test_two_lengths_give_two_rows_whose_parts_make_up_the_whole(tmp_path: Path) -> None:
    plot = tmp_path / "plot.svg"
    done = run("--lengths", "1024", "2048", "--steps", "3", "--svg", str(plot))
    assert done.returncode == 0, done.stderr
    _, _, *rows = done.stdout.splitlines()
    read = [[float(cell.replace(",", "")) for cell in row.strip("|").split("|")] for row in rows]
    assert [row[0] for row in read] == [1024, 2048]
    for _, step, indexer, attention, rest, dense in read:
        assert min(step, indexer, attention, rest, dense) > 0
        assert abs(step - indexer - attention - rest) < 0.03
    polylines = ElementTree.fromstring(plot.read_text("utf-8")).findall("{http://www.w3.org/2000/svg}polyline")
    assert len(polylines) == 4
    for line in polylines:
        points = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
        assert len(points) == 2
        assert all(0 < x < 640 and 0 < y < 400 for x, y in points)


def test_a_length_where_nothing_is_selected_is_refused() -> None:
    done = run("--lengths", "256")
    assert done.returncode == 1
    assert done.stderr == "A length must be above 256, up to 1048576 tokens.\n"
