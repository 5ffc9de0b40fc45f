"""PyTorch's pool: which settings are tried, what a request took and kept, what is said of it. Rows are synthetic."""

from __future__ import annotations

from typing import Any

import pytest

from pinscope.analysis.pytorch_pinned import pool_settings
from pinscope.experiments.allocation.charts import draw
from pinscope.experiments.allocation.experiment import Allocation, AllocationObservation, AllocationParams
from pinscope.experiments.allocation.findings import read_allocation
from pinscope.experiments.allocation.reading import pool_uses
from pinscope.experiments.contract import budget_of
from pinscope.lab.budget import CONTEXT_BYTES
from pinscope.lab.harness import Harness
from pinscope.lab.hostmodel import HostModelLab
from pinscope.records.finding import Reading
from tests.data import synthetic

GIB, MIB = 2**30, 2**20
ASKED = 1300 * MIB
Rows = list[dict[str, Any]]


def rows(setting: str = "in_force", *, took: int = 2 * GIB, left: int = 0, settings: str = "", **changes: Any) -> Rows:
    """One setting's steps, on a host where 5 GiB were pinned before."""
    pinned = {"before": 0, "held": took, "dropped": took, "again": took, "emptied": left}
    return [
        AllocationObservation(
            kind="pool", bytes=ASKED, repeat=0, warmup=False, step=step, setting=setting, settings=settings,
            version="2.11.0", pool_seconds={"held": 0.8, "again": 1e-5}.get(step), pool_bytes=amount,
            pinned_bytes=5 * GIB + amount, nvml_used_bytes=None,
        ).model_dump() | changes
        for step, amount in pinned.items()
    ]  # fmt: skip


def reading(observations: Rows) -> Reading:
    result: Reading = read_allocation(synthetic.run("allocation", params={}), observations)
    return result


def test_what_is_held_kept_and_left_is_counted_from_before_the_tensor() -> None:
    (use,) = pool_uses(rows(left=2 * GIB))
    assert (use.asked, use.held, use.kept, use.left, use.pool) == (ASKED, 2 * GIB, 2 * GIB, 2 * GIB, 2 * GIB)
    assert (use.seconds, use.again_seconds) == (0.8, 1e-5)


def test_rounding_is_a_warning_with_what_each_setting_does_about_it() -> None:
    register = rows("register", settings="PYTORCH_ALLOC_CONF=pinned_use_cuda_host_register:True")
    exact = rows("unrounded", took=ASKED, settings="PYTORCH_ALLOC_CONF=pinned_max_round_threshold_mb:1")
    segment = rows("segment", left=2 * GIB, settings="PYTORCH_ALLOC_CONF=pinned_reserve_segment_size_mb:2048")
    found = reading(rows() + register + exact + segment)
    (finding,) = (one for one in found.findings if one.rule == "pytorch-pool")
    assert finding.severity == "warning"
    assert finding.title == ("PyTorch pins 2 GiB for a tensor of 1.27 GiB, and keeps it pinned when the tensor is gone")
    assert "settings in force: none." in finding.detail
    assert "Less is pinned with: pinned_max_round_threshold_mb:1." in finding.detail
    assert "gives nothing back with: pinned_reserve_segment_size_mb:2048." in finding.detail
    assert "pytorch#192722" in finding.advice
    assert "_host_emptyCache()" in finding.advice
    (shown,) = (one for one in found.tables if one.title == "PyTorch's pool of pinned memory")
    assert [row[0] for row in shown.rows] == ["as set here", "registers", "no rounding", "reserved segment"]
    assert found.headline[-1].value == 2 * GIB


def test_a_request_that_is_not_rounded_is_no_warning() -> None:
    (finding,) = (one for one in reading(rows(took=ASKED)).findings if one.rule == "pytorch-pool")
    assert finding.severity == "note"
    assert "power" not in finding.advice


def test_without_the_hosts_count_pytorch_itself_is_asked() -> None:
    (use,) = pool_uses(rows(pinned_bytes=None))
    assert (use.held, use.taken) == (None, 2 * GIB)
    unknown = reading(rows(pinned_bytes=None, pool_bytes=None))
    assert unknown.headline[-1].reason == "neither the host nor PyTorch reports it"
    assert "pytorch-pool" not in {finding.rule for finding in unknown.findings}


def test_a_chart_shows_what_was_asked_for_and_what_rounding_adds() -> None:
    found = rows() + rows("unrounded", took=ASKED)
    (chart,) = draw(synthetic.run("allocation", params={}), found)
    assert chart.key == "pytorch-pool"
    assert "as set here 2 GiB" in chart.alt
    assert draw(synthetic.run("allocation", params={}), found[:1]) == []


@pytest.mark.parametrize(
    ("version", "text", "reason"),
    [
        ("2.11.0+cu130", None, "PyTorch 2.11 has no setting against the rounding"),
        ("2.13.1", None, "corrupt"),
        ("2.14.0a0+git1", "pinned_max_round_threshold_mb:1", None),
        ("3.0", "pinned_max_round_threshold_mb:1", None),
    ],
)
def test_rounding_is_switched_off_only_where_that_is_safe(version: str, text: str | None, reason: str | None) -> None:
    unrounded = pool_settings(version, ASKED)["unrounded"]
    assert unrounded.text == text
    assert (reason is None) == (unrounded.reason is None)
    assert (reason or "") in (unrounded.reason or "")


def test_the_reserved_segment_is_as_large_as_the_rounded_request() -> None:
    assert pool_settings("2.11", ASKED)["segment"].text == "pinned_reserve_segment_size_mb:2048"


def test_the_budget_counts_the_rounded_request_and_a_context() -> None:
    params = AllocationParams.preset("cuda", True)
    without = budget_of(Allocation(), params, synthetic.environment())
    audited = budget_of(Allocation(), params.with_overrides({"pytorch": True}), synthetic.environment())
    assert audited.pinned_bytes == 2 * GIB
    assert audited.device_bytes == CONTEXT_BYTES + 2 * GIB // 512
    assert audited.seconds > without.seconds


def test_a_smaller_run_does_without_pytorch_first_and_then_without_its_largest_size() -> None:
    full = AllocationParams.preset("cuda", False)
    without = full.smaller()
    assert without is not None
    assert (without.pytorch, without.sizes) == (False, full.sizes)
    fewer = without.smaller()
    assert fewer is not None
    assert fewer.sizes == full.sizes[:-1]


def test_a_lab_without_a_gpu_says_so_in_a_line() -> None:
    notes: list[str] = []
    params = AllocationParams.preset("host", True).with_overrides(
        {"sizes": "64KiB", "ways": "created,fresh_4k", "pytorch": True, "time_limit": 0.01, "repeats": 3}
    )
    with HostModelLab() as lab:
        found = list(Allocation().measure(params, lab, Harness(note=notes.append)))
    assert {row.way for row in found if row.kind == "buffer"} == {"fresh_4k"}
    assert any(note.startswith("Left out: created, 64 KiB. Memory of the NVIDIA driver's") for note in notes)
    assert "Left out: PyTorch's pool. It needs a GPU." in notes
