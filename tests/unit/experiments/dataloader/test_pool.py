"""PyTorch's pool: which settings are tried, what a request took and kept, what is said of it. Rows are synthetic."""

from __future__ import annotations

from typing import Any

import pytest

from pinscope.experiments.dataloader.experiment import DataloaderObservation
from pinscope.experiments.dataloader.reading import Loops
from pinscope.experiments.dataloader.torch_pool import pool_settings
from tests.data.readings import Made

reading = Made("dataloader", params={}).reading

GIB, MIB = 2**30, 2**20
ASKED = 1300 * MIB
Rows = list[dict[str, Any]]


def rows(setting: str = "in_force", *, took: int = 2 * GIB, left: int = 0, settings: str = "", **changes: Any) -> Rows:
    """What one setting did."""
    values = {"pinned_bytes": took, "pool_bytes": took, **changes}
    return [
        DataloaderObservation(
            kind="pool", batch_bytes=ASKED, repeat=0, warmup=False, setting=setting, settings=settings,
            version="2.11.0", pool_seconds=0.8, again_seconds=1e-5, kept_bytes=took, left_bytes=left, **values,
        ).model_dump()
    ]  # fmt: skip


def test_rounding_is_a_warning_with_what_each_setting_does_about_it() -> None:
    register = rows("register", settings="PYTORCH_ALLOC_CONF=pinned_use_cuda_host_register:True")
    exact = rows("unrounded", took=ASKED, settings="PYTORCH_ALLOC_CONF=pinned_max_round_threshold_mb:1")
    segment = rows("segment", left=2 * GIB, settings="PYTORCH_ALLOC_CONF=pinned_reserve_segment_size_mb:2048")
    read = reading(rows() + register + exact + segment)
    (finding,) = read.findings
    assert (finding.rule, finding.severity) == ("pinned-rounding", "warning")
    assert finding.title == "PyTorch pins 2 GiB for a batch of 1.27 GiB"
    assert "Settings in force: none." in finding.detail
    assert "Less is pinned with: pinned_max_round_threshold_mb:1." in finding.detail
    assert "gives nothing back with: pinned_reserve_segment_size_mb:2048." in finding.detail
    assert "pytorch#192722" in finding.advice
    assert "_host_emptyCache()" in finding.advice
    (shown,) = read.tables
    assert shown.title == "PyTorch's pool of pinned memory"
    assert [row[0] for row in shown.rows] == ["as set here", "registers", "no rounding", "reserved segment"]
    assert dict(zip(shown.columns, shown.rows[0], strict=True))["of what was asked for"] == pytest.approx(2048 / 1300)


def test_without_the_hosts_count_pytorch_itself_is_asked() -> None:
    (use,) = Loops(rows(pinned_bytes=None)).uses
    assert (use.pinned_bytes, use.taken) == (None, 2 * GIB)
    unknown = rows(pinned_bytes=None, pool_bytes=None)
    assert reading(unknown).findings == ()


def test_rounding_is_switched_off_only_where_that_is_safe() -> None:
    for version, text, reason in [
        ("2.11.0+cu130", None, "PyTorch 2.11 has no setting against the rounding"),
        ("2.13.1", None, "corrupt"),
        ("2.14.0a0+git1", "pinned_max_round_threshold_mb:1", None),
        ("3.0", "pinned_max_round_threshold_mb:1", None),
    ]:
        unrounded = pool_settings(version, ASKED)["unrounded"]
        assert unrounded.text == text
        assert (reason is None) == (unrounded.reason is None)
        assert (reason or "") in (unrounded.reason or "")


def test_the_reserved_segment_is_as_large_as_the_rounded_request() -> None:
    assert pool_settings("2.11", ASKED)["segment"].text == "pinned_reserve_segment_size_mb:2048"
