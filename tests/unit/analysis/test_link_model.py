"""What a host link carries, against figures that others publish or that were measured."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinscope.analysis.models import payload_now
from pinscope.records.environment import PCIE, PCIE_WIDTHS, Link, c2c_bytes_per_second
from tests.data.link_limits import pcie_limits

H200_COPY = 55.5e9
"""Bytes/second that an H200 copies to the device over generation 5 × 16, as nvbandwidth measures it."""


@pytest.mark.parametrize(
    ("generation", "raw_gigabytes"),
    # One direction of 16 lanes, as the PCI-SIG and vendors quote it.
    [(1, 4.0), (2, 8.0), (3, 15.75), (4, 31.5), (5, 63.0), (6, 121.0)],
)
def test_raw_limit_of_sixteen_lanes_is_the_published_one(generation: int, raw_gigabytes: float) -> None:
    assert pcie_limits(generation, 16)[0] == pytest.approx(raw_gigabytes * 1e9, rel=1e-3)


def test_payload_of_generation_5_stands_just_above_what_an_h200_reaches() -> None:
    payload = pcie_limits(5, 16)[1]
    assert 57e9 < payload < 58e9
    assert 0.95 < H200_COPY / payload < 1


def test_payload_is_what_256_of_280_bytes_carry() -> None:
    raw, payload = pcie_limits(3, 8)
    assert payload == pytest.approx(raw * 256 / 280)


def test_a_flit_leaves_236_bytes_for_packets_of_272() -> None:
    payload = pcie_limits(6, 1)[1]
    assert payload == pytest.approx(64e9 / 8 * 236 / 256 * 256 / 272)


@given(st.sampled_from(sorted(PCIE)), st.sampled_from(PCIE_WIDTHS))
def test_limits_grow_with_lanes_and_generation(generation: int, width: int) -> None:
    raw, payload = pcie_limits(generation, width)
    assert 0 < payload < raw
    assert pcie_limits(generation, 1)[0] * width == pytest.approx(raw)
    if generation > 1:
        assert pcie_limits(generation - 1, width)[1] < payload


def test_a_grace_hopper_link_carries_450_gigabytes_a_second_each_way() -> None:
    assert c2c_bytes_per_second("NVIDIA GH200 480GB") == 450e9
    assert c2c_bytes_per_second("NVIDIA H200") is None


@pytest.mark.parametrize(
    ("generation", "width", "expected"), [(5, 8, pcie_limits(5, 8)[1]), (None, 8, None), (5, None, None), (9, 8, None)]
)
def test_payload_as_trained_now_is_unknown_where_the_training_is(
    generation: int | None, width: int | None, expected: float | None
) -> None:
    link = Link(
        kind="pcie", generation_now=generation, width_now=width, generation_max=5, width_max=16,
        limit_bytes_per_second=None, raw_bytes_per_second=None,
    )  # fmt: skip
    assert payload_now(link) == expected
