"""A packed layer multiplies as torch does, and no kernel is trusted to keep rows apart before it was seen to."""

import pytest
import torch
import torch.nn.functional as F
from glmserve.models import packed
from glmserve.models.packed import CALLS, TILE, Mode, PackedLinear, Product, trusted_mode

IN, OUT = 60, 37


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


WEIGHT, BIAS, X = random(OUT, IN), random(OUT, seed=1), random(143, IN, seed=2)


def honest(x: torch.Tensor) -> torch.Tensor:
    """Row by row: independent by construction."""
    return torch.cat([F.linear(row.clone(), WEIGHT) for row in x.split(1)])


def wrong_by_count(x: torch.Tensor) -> torch.Tensor:
    """As a kernel that blocks differently from 17 rows on."""
    return honest(x) * (1 + 2**-20 * (len(x) > 16))


def wrong_by_place(x: torch.Tensor) -> torch.Tensor:
    """As a kernel that treats the last row of every four apart."""
    return honest(x) * (1 + 2**-20 * (torch.arange(len(x)) % 4 == 3))[:, None]


@pytest.fixture
def force(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "_modes", {})


@pytest.mark.parametrize("bias", [None, BIAS], ids=["no bias", "bias"])
@pytest.mark.parametrize("mode", Mode)
def test_every_mode_multiplies_as_torch_does_for_any_number_of_rows(mode: Mode, bias: torch.Tensor | None) -> None:
    layer = PackedLinear(WEIGHT, bias)
    layer.mode = mode
    for rows in (1, 2, 7, 8, 9, 143):
        torch.testing.assert_close(layer(X[:rows]), F.linear(X[:rows], WEIGHT, bias), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("product", "mode"), [(honest, Mode.ANY), (wrong_by_count, Mode.TILES), (wrong_by_place, Mode.ROWS)]
)
def test_the_probe_picks_the_fastest_mode_that_keeps_rows_apart(product: Product, mode: Mode) -> None:
    assert trusted_mode(product, IN) is mode


@pytest.mark.usefixtures("force")
@pytest.mark.parametrize("product", [honest, wrong_by_count, wrong_by_place])
def test_a_wrong_kernel_is_caught_and_its_rows_stay_independent(
    product: Product, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "_prepacked", lambda weight: product)
    layer = PackedLinear(WEIGHT, BIAS)
    alone = torch.cat([layer(X[i : i + 1]) for i in range(len(X))])
    for rows in range(1, 40):
        assert torch.equal(layer(X[:rows]), alone[:rows])
        assert torch.equal(layer(X[5 : 5 + rows]), alone[5 : 5 + rows])


@pytest.mark.usefixtures("force")
def test_the_real_kernel_keeps_rows_apart_in_the_mode_it_was_given() -> None:
    for out_features, in_features in ((37, 60), (96, 48), (17, 33), (192, 1376)):
        layer = PackedLinear(random(out_features, in_features))
        x = random(150, in_features, seed=3)
        alone = torch.cat([layer(x[i : i + 1]) for i in range(len(x))])
        for rows in (2, 3, 8, 9, 43, 64, 65, 143, 150):
            for start in {0, 150 - rows}:
                assert torch.equal(layer(x[start : start + rows]), alone[start : start + rows])


@pytest.mark.usefixtures("force")
def test_a_shape_is_probed_once_and_again_for_another_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    probed = []
    monkeypatch.setattr(packed, "trusted_mode", lambda product, width: probed.append(width) or Mode.ANY)
    before = torch.get_num_threads()
    try:
        for threads in (1, 1, 2, 2, 1):
            torch.set_num_threads(threads)
            PackedLinear(WEIGHT)
    finally:
        torch.set_num_threads(before)
    assert probed == [IN, IN]


def test_without_the_library_a_plain_product_is_probed_and_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "_modes", {})
    monkeypatch.setattr(torch._C, "_has_mkldnn", False)
    layer = PackedLinear(WEIGHT, BIAS)
    alone = torch.cat([layer(row) for row in X.split(1)])
    assert torch.equal(layer(X), alone)
    torch.testing.assert_close(alone, F.linear(X, WEIGHT, BIAS), rtol=1e-5, atol=1e-5)


def test_a_layer_without_output_features_gives_rows_without_any() -> None:
    layer = PackedLinear(WEIGHT[:0])
    assert [layer(X[:rows]).shape for rows in (1, 9)] == [(1, 0), (9, 0)]


def test_the_source_may_change_after_packing_and_the_input_is_left_alone() -> None:
    source, x = WEIGHT.clone(), X.clone()
    layer = PackedLinear(source)
    expected = layer(x)
    source.zero_()
    assert torch.equal(layer(x), expected)
    assert torch.equal(x, X)
    assert layer.nbytes == WEIGHT.nbytes


def test_a_tile_is_always_full() -> None:
    seen = []

    def product(x: torch.Tensor) -> torch.Tensor:
        seen.append(len(x))
        return honest(x)

    for rows in (1, 8, 9, 20):
        assert torch.equal(CALLS[Mode.TILES](product, X[:rows]), honest(X[:rows]))
    assert set(seen) == {TILE}


def test_the_library_meets_few_numbers_of_rows_and_is_given_few_rows_too_many() -> None:
    seen: list[int] = []

    def product(x: torch.Tensor) -> torch.Tensor:
        seen.append(len(x))
        return honest(x)

    for rows in range(1, 513):
        found = CALLS[Mode.ANY](product, X[:1].expand(rows, -1))
        assert torch.equal(found, honest(X[:1]).expand(rows, -1))
        assert rows <= seen[-1] <= max(rows + 1, 1.5 * rows)
    assert len(set(seen)) < 30
