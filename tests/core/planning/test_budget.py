"""What fits on four devices of 121.7 GiB, and that what is advised helps as it says."""

from __future__ import annotations

import pytest
from glmserve.planning.budget import GIB, Budget, budget, remedies
from glmserve.planning.components import Component
from glmserve.profiles import Profile, load_profile
from hypothesis import given, settings
from hypothesis import strategies as st

from .glm53 import shipped_weights, subject

DEVICE_BYTES = round(121.7 * GIB)


def profile(*overrides: str, drafter: str = "none") -> Profile:
    return load_profile("four-spark", (*overrides, f"drafter.name={drafter}"), environ={})


def sizes(tokens: int, kv_dtype: str, context: int) -> tuple[str, ...]:
    return (
        f"engine.kv_tokens={tokens}",
        f"engine.max_context={tokens}",
        f"engine.kv_dtype={kv_dtype}",
        f"parallel.context={context}",
    )


def made(made_of: Profile) -> Budget:
    return budget(made_of, subject(), shipped_weights(), DEVICE_BYTES)


@pytest.mark.parametrize(
    ("tokens", "kv_dtype", "context", "fits"),
    [
        # As published for this kit: measured or derived from what was measured.
        (163_840, "bfloat16", 1, True),
        (262_144, "bfloat16", 1, False),
        (262_144, "bfloat16", 4, True),
        (1_048_576, "bfloat16", 1, False),
        (1_048_576, "float8_e4m3", 1, False),
        (1_048_576, "float8_e4m3", 4, True),
        (1_048_576, "bfloat16", 4, False),
    ],
)
@pytest.mark.parametrize("drafter", ["dflash2"])
def test_what_fits_is_what_was_published_to_fit(
    tokens: int, kv_dtype: str, context: int, fits: bool, drafter: str
) -> None:
    assert made(profile(*sizes(tokens, kv_dtype, context), drafter=drafter)).fits is fits


@pytest.mark.parametrize("drafter", ["dflash2", "mtp", "none"])
def test_the_shipped_profile_fits_with_its_drafter_and_with_its_fallback(drafter: str) -> None:
    assert made(profile(drafter=drafter)).fits


def test_what_is_left_is_the_device_without_every_line() -> None:
    one = made(profile(drafter="dflash2"))
    lines = (one.weights_bytes, one.drafter_bytes, one.kv_bytes, *one.reserve_bytes.values())
    assert one.left_bytes == DEVICE_BYTES - sum(lines)
    assert set(one.reserve_bytes) == {"cuda_and_nccl", "cuda_graphs", "prompt_buffers", "system", "floor"}


def test_only_the_drafter_mtp_loads_the_next_token_layer() -> None:
    mtp, none = made(profile(drafter="mtp")), made(profile(drafter="none"))
    assert 2.5e9 < mtp.weights_bytes - none.weights_bytes < 2.7e9
    assert mtp.kv_bytes - none.kv_bytes == 1_048_576 * 788  # on every rank


@settings(max_examples=30, deadline=None)
@given(
    tokens=st.integers(1 << 16, 1 << 20),
    kv_dtype=st.sampled_from(["float32", "bfloat16", "float8_e4m3"]),
    context=st.sampled_from([1, 2, 4]),
    drafter=st.sampled_from(["dflash2", "mtp", "none"]),
)
def test_a_change_that_is_advised_leaves_what_it_says(tokens: int, kv_dtype: str, context: int, drafter: str) -> None:
    settings_ = sizes(tokens, kv_dtype, context)
    before = profile(*settings_, drafter=drafter)
    now = made(before)
    for remedy in remedies(before, subject(), shipped_weights(), now) if not now.fits else ():
        if "model.source" in remedy.change:
            continue  # another pack: no key of the profile shrinks this one
        changes = tuple(f"{key}={value}" for key, value in remedy.change.items())
        name = remedy.change.get("drafter.name", drafter)
        after = made(load_profile("four-spark", (*settings_, f"drafter.name={name}", *changes), environ={}))
        assert abs(after.left_bytes - remedy.left_bytes) <= 1
        assert after.left_bytes > now.left_bytes


def test_narrower_experts_are_advised_down_to_what_is_missing() -> None:
    asked = profile(*sizes(1_048_576, "bfloat16", 4))
    now = made(asked)
    (pack,) = [r for r in remedies(asked, subject(), shipped_weights(), now) if "model.source" in r.change]
    assert now.left_bytes < 0 <= pack.left_bytes < 0.5 * GIB
    assert pack.change["model.source"] == "a pack whose experts take at most 3.12 bits a weight"


def test_a_pack_without_its_next_token_layer_is_not_advised_to_draft_with_it() -> None:
    asked = profile(*sizes(1_048_576, "bfloat16", 1), drafter="dflash2")
    kept = tuple(part for part in shipped_weights() if part.component is not Component.MTP)
    for weights, advised in ((shipped_weights(), {"mtp", "none"}), (kept, {"none"})):
        found = remedies(asked, subject(), weights, budget(asked, subject(), weights, DEVICE_BYTES))
        assert {r.change["drafter.name"] for r in found if "drafter.name" in r.change} == advised


def test_what_fits_alone_comes_first() -> None:
    asked = profile(*sizes(1_048_576, "bfloat16", 1))
    found = remedies(asked, subject(), shipped_weights(), made(asked))
    assert found[0].change == {"engine.kv_dtype": "float8_e4m3", "parallel.context": "4"}
    assert [r.fits for r in found] == sorted((r.fits for r in found), reverse=True)
