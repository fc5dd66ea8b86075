from collections.abc import Iterator
from typing import Any

import pytest

from . import tiny


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tiny.load_model(tiny.write_checkpoint(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="module")
def engine(model: Any) -> Iterator[Any]:
    engine = tiny.make_engine(model)
    yield engine
    engine.stop()
    assert engine.check_integrity() == []
