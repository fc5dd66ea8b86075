"""Where the files of the licence catalogue are. Their meaning is the business of `glmserve.licensing`."""

from __future__ import annotations

from pathlib import Path

__version__ = "2026.11.30"

ROOT = Path(__file__).parent
TEXTS = ROOT / "texts"
FINGERPRINTS = ROOT / "fingerprints.toml"
ALIASES = ROOT / "aliases.toml"


def terms_files() -> tuple[Path, ...]:
    """The files with rows, by name."""
    return tuple(sorted((ROOT / "terms").glob("*.toml")))
