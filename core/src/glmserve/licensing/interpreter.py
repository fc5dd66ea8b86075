"""Where another Python keeps its packages."""

from __future__ import annotations

import json
import subprocess
from importlib.metadata import distributions
from pathlib import Path

from glmserve.api import ConfigError

DEADLINE_S = 20.0
_PRINT_PATH = "import json, sys; print(json.dumps(sys.path))"


def search_path(python: Path) -> list[str]:
    """The directories that an interpreter imports from; a directory stands for itself. Raises ConfigError."""
    if python.is_dir():
        # The root of a virtual environment is easily taken for it, and would look like one in which nothing is denied.
        if next(iter(distributions(path=[str(python)])), None) is None:
            raise ConfigError(f"No package is installed in {python}; give an interpreter, or its site-packages.")
        return [str(python)]
    try:
        # -I: neither the working directory nor the caller's variables may add to the answer.
        asked = subprocess.run(
            [str(python), "-I", "-c", _PRINT_PATH], capture_output=True, timeout=DEADLINE_S, check=True, text=True
        )
        path = json.loads(asked.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        why = type(error).__name__ if not isinstance(error, OSError) else error.strerror
        raise ConfigError(f"{python} is no Python interpreter that answers ({why}); give its path.") from None
    return [str(entry) for entry in path]
