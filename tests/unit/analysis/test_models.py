"""What a host link carries, against figures that others publish, and errors on it while a run measured."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinscope.analysis.models import link_error_findings, payload_now, rises
from pinscope.experiments.registry import read_run
from pinscope.records.environment import PCIE, PCIE_WIDTHS, Device, Link, LinkErrors, c2c_bytes_per_second
from tests.data import synthetic
from tests.data.link_limits import pcie_limits

H200_COPY = 55.5e9
"""Bytes/second that an H200 copies to the device over generation 5 × 16, as nvbandwidth measures it."""


def test_raw_limit_of_sixteen_lanes_is_the_published_one() -> None:
    for generation, raw_gigabytes in [(1, 4.0), (2, 8.0), (3, 15.75), (4, 31.5), (5, 63.0), (6, 121.0)]:
        assert pcie_limits(generation, 16)[0] == pytest.approx(raw_gigabytes * 1e9, rel=1e-3)


def test_payload_of_generation_5_stands_just_above_what_an_h200_reaches() -> None:
    payload = pcie_limits(5, 16)[1]
    assert 57e9 < payload < 58e9
    assert 0.95 < H200_COPY / payload < 1


def test_payload_is_what_packets_leave() -> None:
    raw, payload = pcie_limits(3, 8)
    assert payload == pytest.approx(raw * 256 / 280)
    assert pcie_limits(6, 1)[1] == pytest.approx(64e9 / 8 * 236 / 256 * 256 / 272)  # flits


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


def test_payload_as_trained_now_is_unknown_where_the_training_is() -> None:
    for generation, width, expected in [(5, 8, pcie_limits(5, 8)[1]), (None, 8, None), (5, None, None), (9, 8, None)]:
        link = Link(
            kind="pcie", generation_now=generation, width_now=width, generation_max=5, width_max=16,
            limit_bytes_per_second=None, raw_bytes_per_second=None,
        )  # fmt: skip
        assert payload_now(link) == expected


NONE = LinkErrors(replays=3, correctable=0, nonfatal=0, fatal=0)


def gpu(before: LinkErrors | None, after: LinkErrors | None) -> Device:
    device = synthetic.document("bandwidth").run.environment.devices[0]
    return device.model_copy(update={"link_errors": before, "link_errors_after": after})


def test_only_what_rose_is_counted() -> None:
    for before, after, risen in [
        (NONE, NONE, {}),
        (NONE, NONE.model_copy(update={"replays": 5}), {"replays": 2}),
        (NONE, NONE.model_copy(update={"correctable": 1, "fatal": 2}), {"correctable": 1, "fatal": 2}),
        (NONE, NONE.model_copy(update={"replays": 1}), {}),  # the driver was loaded anew
        (NONE, NONE.model_copy(update={"replays": None, "missing": {"replays": "Not Supported"}}), {}),
        (NONE, None, {}),
        (None, NONE, {}),
    ]:
        assert rises(gpu(before, after)) == risen


def test_a_run_whose_link_made_errors_says_so_with_both_counts() -> None:
    for kind, severity in [("replays", "note"), ("correctable", "note"), ("nonfatal", "warning"), ("fatal", "warning")]:
        document = synthetic.document("bandwidth")
        before = NONE.model_copy(update={kind: 7})
        device = gpu(before, before.model_copy(update={kind: 1207}))
        environment = document.run.environment.model_copy(update={"devices": (device,)})
        (finding,) = link_error_findings(environment)
        assert finding.severity == severity
        assert finding.title.startswith("GPU 0: 1,200 ")
        assert [quantity.value for quantity in finding.evidence] == [7, 1207]
        run = document.run.model_copy(update={"environment": environment})
        assert read_run(run, document.rows).findings[-1] == finding
        assert link_error_findings(document.run.environment) == ()
