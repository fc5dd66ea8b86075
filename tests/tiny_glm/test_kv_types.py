"""What a smaller type of the context costs the shipped model stays within what docs/glm-5.3.md says of it."""

from __future__ import annotations

import pytest

from . import kv_types


@pytest.mark.parametrize(
    ("kv_dtype", "usual", "agreement", "selection"),
    [("bfloat16", 0.4, 0.995, 0.995), ("float8_e4m3", 1.5, 0.98, 0.98)],
)
def test_the_error_is_small(kv_dtype: str, usual: float, agreement: float, selection: float) -> None:
    error = kv_types.error(kv_dtype)
    assert 0 < error.usual < usual
    assert error.agreement > agreement
    assert error.selection > selection


def test_wider_types_err_less() -> None:
    bfloat16, float8 = kv_types.error("bfloat16"), kv_types.error("float8_e4m3")
    assert bfloat16.usual < float8.usual / 2
    assert float8.token_bytes < bfloat16.token_bytes < kv_types.error("float32").token_bytes


def test_the_texts_are_shorter_and_longer_than_the_selection() -> None:
    lengths = [len(ids) for ids in kv_types.texts()]
    assert min(lengths) < kv_types.TOPK < max(lengths)
