"""Tiny GLM: a checkpoint of 3.5 million parameters that lies in this package as data."""

from __future__ import annotations

from pathlib import Path
from typing import Final

CHECKPOINT: Final = Path(__file__).parent / "checkpoint"
"""The directory with config.json, the weights, the tokenizer and the chat template."""
