"""What is read back of an entry in 8 bits."""

import pytest
import torch
from glmserve.models.entries import GROUP, from_float8, to_float8


def test_every_code_is_the_number_that_torch_makes_of_it() -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    numbers = codes.to(torch.float32)
    defined = ~numbers.isnan()
    assert int(defined.sum()) == 254
    for scale in (1.0, 0.3, 1e-20):
        found = from_float8(codes[:, None], torch.full((256, 1), scale))[:, 0]
        assert torch.equal(found[defined], (numbers * scale)[defined])


@pytest.mark.parametrize("width", [1, 32, 128, 200, 512])
def test_each_group_has_its_own_scale(width: int) -> None:
    values = torch.randn(7, width) * torch.logspace(-8, 8, 7)[:, None]
    codes, scales = to_float8(values)
    expected = codes.to(torch.float32) * scales.repeat_interleave(GROUP, -1)[:, :width]
    assert torch.equal(from_float8(codes, scales), expected)
    assert ((expected - values).abs() <= values.abs().amax(1, keepdim=True) / 14).all()


@pytest.mark.parametrize("broken", [torch.nan, torch.inf, -torch.inf])
def test_what_was_not_finite_does_not_become_so(broken: float) -> None:
    values = torch.randn(3, 200)
    values[1, 5] = broken
    found = from_float8(*to_float8(values))
    assert not found[1, 5].isfinite()
    assert found[[0, 2]].isfinite().all()
