"""Third-party plugins as pip leaves them on disk: a module, and a dist-info directory that names its hooks."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

GLMSERVE = Path(sys.executable).with_name("glmserve")
"""The console script of the environment that runs the tests."""

DRAFTER = """
from glmserve.api import Draft, Drafter, hookimpl

class {cls}(Drafter):
    name = "{name}"
    {extra}

    def __init__(self, target, options):
        self.vocab_size = target.vocab_size

    def observe(self, sequence, start, tokens, taps):
        pass

    def propose(self, sequence, pending, depth):
        # Right now and then, and wrong or out of range otherwise: none of it may show in the output.
        return Draft(tuple((pending * 7 + i) % (self.vocab_size + 2) for i in range(depth)))

    def forget(self, sequence):
        pass

@hookimpl
def drafters():
    return [{cls}]
"""

_serial = itertools.count()


def drafter_source(name: str, cls: str = "ModuloDrafter", extra: str = "") -> str:
    """A module with one drafter. `extra` is one line of its class body."""
    return DRAFTER.format(name=name, cls=cls, extra=extra)


def install(site: Path, distribution: str, source: str, version: str = "1.0", license: str = "MIT") -> None:
    """Put a distribution with one plugin module into `site`, without running pip."""
    # sys.modules outlives a test, so every module needs a name of its own.
    module = f"{distribution.replace('-', '_')}_{next(_serial)}"
    (site / f"{module}.py").write_text(source)
    info = site / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.4\nName: {distribution}\nVersion: {version}\nLicense-Expression: {license}\n"
    )
    (info / "entry_points.txt").write_text(f"[glmserve]\n{distribution} = {module}\n")


def glmserve(*args: str, site: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the command `glmserve`, with the distributions in `site`, and with only these settings in its environment."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GLMSERVE_")} | environ
    paths = [*([str(site)] if site else []), *filter(None, [os.environ.get("PYTHONPATH")])]
    if paths:
        env["PYTHONPATH"] = os.pathsep.join(paths)
    return subprocess.run([GLMSERVE, *args], env=env, capture_output=True, text=True, timeout=60)
