"""The real model that several parts are checked on, and signals as a terminal has them."""

import signal
from pathlib import Path

import pytest
from glmserve.profiles import load_profile
from glmserve.store.pull import pull
from glmserve.store.sources import parse_source
from hypothesis import HealthCheck, settings

# Drawing is slow where other work has the cores, which says nothing about a test.
# Property tests draw the same examples in every run; `--hypothesis-profile random` draws new ones, to find new faults.
settings.register_profile("random", suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeatable", derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("repeatable")

# What a shell starts in the background ignores interrupts, and its children inherit that: tests send them to some.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The GGUF file of profile `local`; fetched once and kept in the store."""
    model = load_profile("local", environ={}).model
    return pull(parse_source(model.source), model.sha256 or None)
