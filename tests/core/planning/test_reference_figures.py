"""The plan's figures for GLM-5.3 against published ones: counts and file sizes exactly, estimates within 1 %."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from glmserve.api import TensorInfo
from glmserve.planning.cache import glm_cache
from glmserve.planning.components import Component, layer_of
from glmserve.planning.drafters import dflash2
from glmserve.planning.facts import load_facts
from glmserve.planning.roofline import decode
from glmserve.planning.shares import shares
from glmserve.planning.subject import pool_bytes
from glmserve.planning.traffic import Collective, glm_traffic, prefill_sum_bytes
from glmserve.planning.weights import Weights, rank_bytes
from glmserve.profiles.schema import DeviceSection

from .glm53 import facts, kit, shape, shipped, shipped_weights, stored_as, stored_bytes

MILLION = 1_048_576


def near(figure: float) -> object:
    return pytest.approx(figure, rel=0.01)


def parameters(component: Component, ending: str | tuple[str, ...] = "") -> float:
    """In billions; of the trunk's layers whose names end so, when an ending is given."""
    if not ending:
        return next(part.parameters for part in shipped_weights() if part.component is component) / 1e9
    plain = stored_as(None).tensors.values()
    return sum(math.prod(info.shape) for info in plain if info.name.endswith(ending) and ".78." not in info.name) / 1e9


def total(of: str, weights: tuple[Weights, ...] | None = None, mtp: bool = True) -> float:
    """In GB, or billions of parameters."""
    counted = shipped_weights() if weights is None else weights
    return sum(getattr(part, of) for part in counted if mtp or part.component is not Component.MTP) / 1e9


def test_the_bfloat16_checkpoint_has_the_published_tensors_and_bytes() -> None:
    checkpoint = stored_as(None)
    assert len(checkpoint.tensors) == 59_585
    assert stored_bytes(checkpoint) == 1_506_659_919_872


def test_the_block_fp8_checkpoint_has_the_published_tensors_and_bytes() -> None:
    checkpoint = stored_as({"quant_method": "fp8"})
    assert len(checkpoint.tensors) == 118_629
    assert stored_bytes(checkpoint) == 755_617_140_416


def test_an_indexer_on_every_layer_gives_the_published_size_of_glm_5_1() -> None:
    checkpoint = stored_as(None, index_topk_freq=None, index_skip_topk_offset=None)
    assert len(checkpoint.tensors) == 59_870
    assert stored_bytes(checkpoint) == 1_507_728_316_928


def test_indexers_stand_on_the_published_layers() -> None:
    assert shape().full_indexers == (0, 1, 2, *range(6, 78, 4))


@pytest.mark.parametrize(
    ("component", "ending", "billions"),
    [
        (Component.ROUTED, "", 724.776),
        (Component.ATTENTION, "o_proj.weight", 7.852),
        (Component.SHARED, "", 2.831),
        (Component.ATTENTION, "q_b_proj.weight", 2.617),
        (Component.ATTENTION, ("q_a_proj.weight", "kv_a_proj_with_mqa.weight"), 1.258),
        (Component.ATTENTION, "kv_b_proj.weight", 1.145),
        (Component.EMBEDDING, "", 0.952),
        (Component.HEAD, "", 0.952),
        (Component.DENSE_MLP, "", 0.680),
        (Component.INDEXER, "", 0.197),
        (Component.ROUTER, "", 0.118),
        (Component.MTP, "", 9.953),
    ],
)
def test_each_part_has_the_published_parameters(
    component: Component, ending: str | tuple[str, ...], billions: float
) -> None:
    assert parameters(component, ending) == pytest.approx(billions, abs=0.0006)


def test_the_model_has_the_published_parameters_and_active_ones() -> None:
    assert sum(part.parameters for part in shipped_weights()) == 753_329_940_480
    assert total("parameters", mtp=False) == pytest.approx(743.377, abs=0.0006)
    assert total("active_parameters") == near(40.3)


@pytest.mark.parametrize(
    ("widths", "stated_gb"),
    [((2.75, 8, 16), 276.0), ((3.0, 4, 6), 292.7), ((3.23, 8, 8), 319.0)],
)
def test_a_kit_takes_the_disk_that_its_maker_states(widths: tuple[float, float, float], stated_gb: float) -> None:
    assert stored_bytes(kit(*widths)) / 1e9 == pytest.approx(stated_gb, rel=0.002)


def test_the_shipped_facts_hold_the_published_bytes_a_rank() -> None:
    assert total("stored_bytes") == near(318.3)  # 3.38 bits of all parameters
    assert total("rank_bytes", mtp=False) == near(79.8)
    assert total("rank_bytes") == near(82.4)


def test_the_kit_of_2_75_bits_holds_the_published_bytes_a_rank_beside_its_scales() -> None:
    # The published figures leave out the vectors of scales, of which a rank keeps the whole side that is not cut.
    tensors = kit(2.75, 8, 16).tensors.values()
    bare = [info for info in tensors if not info.name.endswith((".suh", ".svh", ".mul1"))]
    held = {mtp: sum(on_a_rank(info) for info in bare if mtp or ".78." not in info.name) / 1e9 for mtp in (0, 1)}
    assert held[1] == near(71.2)
    assert held[0] == near(68.6)
    scales = sum(on_a_rank(info) for info in tensors) / 1e9 - held[1]
    assert scales == pytest.approx(0.79, abs=0.05)


def on_a_rank(info: TensorInfo) -> int:
    return rank_bytes(info, shares(facts().config, 4).of(layer_of(info.name)))


@pytest.mark.parametrize(
    ("kv_dtype", "mtp", "token_bytes"),
    [
        ("bfloat16", False, 95_232),
        ("bfloat16", True, 96_640),
        ("float16", True, 96_640),
        ("float8_e4m3", False, 53_940),
        ("float8_e4m3", True, 54_728),
        ("float32", False, 2 * 95_232),
    ],
)
def test_a_token_of_context_takes_the_published_bytes(kv_dtype: str, mtp: bool, token_bytes: int) -> None:
    assert sum(entry.token_bytes for entry in glm_cache(shape(), kv_dtype, mtp)) == token_bytes


@pytest.mark.parametrize(("kv_dtype", "whole_gb", "dealt_gb"), [("bfloat16", 101.3, 25.3), ("float8_e4m3", 57.4, 14.3)])
def test_a_million_tokens_take_the_published_bytes_a_rank(kv_dtype: str, whole_gb: float, dealt_gb: float) -> None:
    cache = glm_cache(shape(), kv_dtype, mtp=True)
    assert pool_bytes(cache, MILLION, 4, 1) / 1e9 == near(whole_gb)
    # Published with the next-token layer's positions dealt out too, all of which a rank keeps that drafts with it.
    drafts = MILLION * sum(entry.token_bytes for entry in cache if entry.replicated)
    assert (pool_bytes(cache, MILLION, 4, 4) - drafts * 3 // 4) / 1e9 == near(dealt_gb)


def exchanges(context: int) -> dict[str, Collective]:
    return {collective.name: collective for collective in glm_traffic(shape(), 4, context)}


def test_a_token_costs_the_published_layer_sums() -> None:
    sums = exchanges(1)["layer sums"]
    assert sums.count == 156
    assert sums.payload_bytes == 24_576
    assert sums.token_payload_bytes / 1e6 == near(3.83)
    assert sums.token_sent_bytes / 1e6 == near(11.5)
    assert prefill_sum_bytes(shape(), 4096) / 1e6 == near(100)


def test_context_parallelism_adds_the_published_exchanges() -> None:
    added = exchanges(4)
    # Published for queries of bfloat16; these are float32.
    assert (added["queries"].count, added["queries"].payload_bytes) == (78, 2 * 18_432)
    assert added["attention merge"].count == 78
    assert added["attention merge"].payload_bytes == near(32_800)
    assert (added["index candidates"].count, added["index candidates"].payload_bytes) == (21, 16_384)


def test_a_rank_reads_the_published_bytes_a_token() -> None:
    weights = {part.component: part.read_bytes / 1e9 for part in shipped_weights()}
    assert sum(weights.values()) == near(6.7)
    assert weights[Component.ROUTED] == pytest.approx(2.3, abs=0.05)
    assert weights[Component.ATTENTION] == pytest.approx(1.6 + 0.8 + 0.6, abs=0.05)
    assert weights[Component.HEAD] == pytest.approx(0.5, abs=0.05)
    assert weights[Component.SHARED] == pytest.approx(0.4, abs=0.05)
    assert weights[Component.ROUTER] == near(0.236)


@pytest.mark.parametrize(("bandwidth_gb_s", "published_ms"), [(273, 25), (220, 31)])
def test_reading_the_weights_takes_the_published_time(bandwidth_gb_s: float, published_ms: float) -> None:
    device = DeviceSection(bandwidth_gb_s=bandwidth_gb_s)
    one = decode(shipped_weights(), (), (), 0, 4, 1, device)
    assert one.roof_s * 1e3 == pytest.approx(published_ms, rel=0.015)  # published without decimals


def test_serial_decode_comes_out_at_the_published_rate() -> None:
    device = DeviceSection(bandwidth_gb_s=220, collective_us=40)
    cache = glm_cache(shape(), "bfloat16", mtp=False)
    one = decode(shipped_weights(), cache, glm_traffic(shape(), 4, 1), 2048, 4, 1, device)
    assert 5e-3 <= one.exchange_s <= 8e-3
    assert 26 <= one.expected_tokens_s <= 28  # 26.5 was measured


def test_a_million_index_keys_are_read_as_published() -> None:
    _, keys = glm_cache(shape(), "bfloat16", mtp=False)
    assert keys.rank_read_bytes(MILLION, 4, 1) / 1e9 == near(5.6)
    assert keys.rank_read_bytes(MILLION, 4, 4) / 1e9 == near(1.4)


def test_the_drafter_has_its_published_parameters_and_bytes() -> None:
    drafter = dflash2(load_facts("glm-5.3-dflash2", Path()))
    assert drafter.parameters == 2_459_424_256
    assert drafter.weights_bytes == 4_918_859_112 - 10_600  # the file, without its header
    assert drafter.state_bytes == 4096 * 24_576


def test_facts_say_where_they_come_from() -> None:
    for name in ("glm-5.3-exl3-3.38bpw", "glm-5.3-dflash2"):
        assert load_facts(name, Path()).notes
    assert shipped().config is facts().config
