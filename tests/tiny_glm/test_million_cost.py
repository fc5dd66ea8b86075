"""The measurement of a step's cost on several ranks runs, and its memory is what the types of the cache say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

SCRIPT = Path(__file__).parents[2] / "bench" / "million.py"
LATENT_BYTES, KEY_BYTES = 5 * (64 + 16) * 4, 3 * 32 * 4
"""Of a token, in float32."""


@pytest.mark.slow
def test_ranks_keep_the_cache_between_them_and_exchange_as_much_at_every_length(tmp_path: Path) -> None:
    plot = tmp_path / "plot.svg"
    arguments = ("--ranks", "1", "2", "--lengths", "1024", "4096", "--passes", "1", "--steps", "2", "--svg", str(plot))
    done = subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    table, exchanges = done.stdout.split("\n\n")
    _, _, *rows = table.splitlines()
    read = [[float(cell.replace(",", "")) for cell in row.strip("|").split("|")] for row in rows]
    assert [row[:2] for row in read] == [[1, 1024], [1, 4096], [2, 1024], [2, 4096]]
    for ranks, tokens, step, waited, processor, indexer, attention, rest, latents, keys, resident in read:
        assert (waited > 0) == (ranks > 1)
        assert step > waited
        assert abs(processor - indexer - attention - rest) < 0.2
        assert abs(latents - LATENT_BYTES * tokens / ranks / 2**20) < 0.06
        assert abs(keys - KEY_BYTES * tokens / ranks / 2**20) < 0.06
        assert resident > latents + keys
    for line in exchanges.splitlines():
        _, made = line.split(": ")
        short, long = made.rstrip(".").split("; ")
        assert short == long
    # A sum of each layer's attention and MLP, and with the context dealt out queries and partials of every layer and
    # candidates of every full one; then the logits.
    assert exchanges.splitlines()[1].split(": ")[1].startswith(f"{5 * 4 + 3 + 1} exchanges")
    polylines = ElementTree.fromstring(plot.read_text("utf-8")).findall("{http://www.w3.org/2000/svg}polyline")
    assert len(polylines) == 4
