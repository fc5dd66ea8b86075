"""The real model, and models in several shapes."""

from pathlib import Path

import pytest
from glmserve.profiles import load_profile
from glmserve.store.pull import pull
from glmserve.store.sources import parse_source


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The GGUF file of profile `local`; fetched once and kept in the store."""
    model = load_profile("local", environ={}).model
    return pull(parse_source(model.source), model.sha256 or None)
