"""allocation on the host model, and the parameters and budgets of both experiments about pinning."""

from __future__ import annotations

import mmap
from typing import Any

import pytest

from pinscope.experiments.allocation import ways as allocation
from pinscope.experiments.allocation.experiment import Allocation, AllocationParams
from pinscope.experiments.allocation.reading import needed_faults
from pinscope.experiments.allocation.ways import why_no_page_faults
from pinscope.experiments.contract import budget_of
from pinscope.experiments.pinning_strategy.experiment import PinningStrategy, PinningStrategyParams
from pinscope.lab.harness import CONTEXT_BYTES, Harness
from pinscope.lab.hostmodel import HostModelLab
from pinscope.records.registration import STRATEGIES
from tests.data import synthetic

MIB, GIB = 2**20, 2**30


HOST_WAYS = AllocationParams.preset("host", True).ways


@pytest.fixture(scope="module")
def measured() -> tuple[list[dict[str, Any]], list[str]]:
    """Rows of a small run on the host model, and its notes."""
    notes: list[str] = []
    params = AllocationParams.preset("host", True).with_overrides(
        {"sizes": "64KiB,1MiB", "time_limit": 0.02, "repeats": 8}
    )
    with HostModelLab() as lab:
        harness = Harness(note=notes.append)
        return [row.model_dump() for row in Allocation().measure(params, lab, harness)], notes


def test_every_way_that_the_host_has_is_measured_with_every_size(
    measured: tuple[list[dict[str, Any]], list[str]],
) -> None:
    rows, notes = measured
    buffers = [row for row in rows if row["kind"] == "buffer"]
    left_out = {way for way in HOST_WAYS if any(way.replace("_", "-") in note for note in notes)}
    ways = {row["way"] for row in buffers if row["bytes"] == MIB}
    assert ways | left_out == set(HOST_WAYS)
    assert left_out <= {"fresh_thp", "registered_thp", "registered_hugetlb"}
    assert {"malloc", "malloc_touch", "fresh_4k", "pinned", "registered_4k", "pool"} <= ways
    assert all(row["get_seconds"] > 0 and row["give_back_seconds"] > 0 for row in buffers)


def test_the_parts_of_a_registration_make_up_its_time(measured: tuple[list[dict[str, Any]], list[str]]) -> None:
    for row in measured[0]:
        if row["way"] == "registered_4k":
            assert 0 < row["touch_seconds"] + row["register_seconds"] <= row["get_seconds"]
            assert 0 < row["unregister_seconds"] <= row["give_back_seconds"]
        elif row["way"] in ("malloc_touch", "fresh_4k", "fresh_thp"):
            assert 0 < row["touch_seconds"] <= row["get_seconds"]
            assert row["unregister_seconds"] is None
        else:
            assert row["way"] in ("registered_thp", "registered_hugetlb") or row["register_seconds"] is None


def test_fresh_memory_is_fresh_in_every_turn_as_its_page_faults_show(
    measured: tuple[list[dict[str, Any]], list[str]],
) -> None:
    if why_no_page_faults():
        pytest.skip(f"{why_no_page_faults()}")
    fresh = [row for row in measured[0] if needed_faults(row["way"] or "", row["bytes"], mmap.PAGESIZE)]
    assert {row["way"] for row in fresh} >= {"fresh_4k", "registered_4k"}
    for row in fresh:
        assert row["page_faults"] >= needed_faults(row["way"], row["bytes"], mmap.PAGESIZE), row
    reused = [row for row in measured[0] if row["way"] == "pool" and not row["warmup"]]
    assert all(row["page_faults"] < row["bytes"] / mmap.PAGESIZE for row in reused)


def test_where_faults_are_not_counted_they_are_unknown_and_the_run_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocation, "_page_faults", lambda: 0)
    notes: list[str] = []
    params = AllocationParams.preset("host", True).with_overrides(
        {"sizes": "64KiB", "ways": "fresh_4k", "time_limit": 0.01, "repeats": 8}
    )
    with HostModelLab() as lab:
        rows = [row.model_dump() for row in Allocation().measure(params, lab, Harness(note=notes.append))]
    assert {row["page_faults"] for row in rows} == {None}
    assert any("does not count the page faults" in note for note in notes)


def test_a_pool_is_much_faster_than_a_fresh_buffer_and_its_first_one_is_not_counted(
    measured: tuple[list[dict[str, Any]], list[str]],
) -> None:
    def least(way: str, warmup: bool) -> float:
        return min(
            row["get_seconds"] for row in measured[0]
            if (row["way"], row["bytes"], row["warmup"]) == (way, MIB, warmup)
        )  # fmt: skip

    assert least("pool", warmup=False) < least("pinned", warmup=False) / 5
    assert least("pool", warmup=True) > 5 * least("pool", warmup=False)


def test_posix_segments_are_a_way_and_pages_of_1_gib_are_noted_where_buffers_are_smaller() -> None:
    notes: list[str] = []
    params = AllocationParams.preset("host", True).with_overrides(
        {
            "sizes": "64KiB,1MiB",
            "ways": "registered_shm_open,registered_hugetlb_1g,created",
            "time_limit": 0.01,
            "repeats": 8,
        }
    )
    with HostModelLab() as lab:
        rows = list(Allocation().measure(params, lab, Harness(note=notes.append)))
    assert {row.way for row in rows if row.kind == "buffer"} == {"registered_shm_open"}
    assert "Left out: registered-hugetlb-1g, up to 1 MiB. A page is 1 GiB." in notes
    assert any(note.startswith("Left out: created, 64 KiB. Memory of the NVIDIA driver's") for note in notes)


def test_copies_from_both_kinds_are_measured_both_ways(measured: tuple[list[dict[str, Any]], list[str]]) -> None:
    copies = {(row["memory"], row["direction"], row["bytes"]) for row in measured[0] if row["kind"] == "copy"}
    assert copies == {
        (memory, way, size) for memory in ("pageable", "pinned") for way in ("h2d", "d2h") for size in (2**16, MIB)
    }


def test_budgets_hold_one_buffer_or_a_pool_of_each_size() -> None:
    params = AllocationParams.preset("cuda", False)
    environment = synthetic.environment()
    pooled = budget_of(Allocation(), params, environment)
    assert pooled.pinned_bytes == sum(params.sizes)
    fresh = params.with_overrides({"ways": "pinned,fresh_4k"})
    assert budget_of(Allocation(), fresh, environment).pinned_bytes == max(params.sizes)
    strategy = budget_of(PinningStrategy(), PinningStrategyParams.preset("cuda", False), environment)
    contexts, page_table = 3 * CONTEXT_BYTES, 16 * GIB // 512
    assert (strategy.pinned_bytes, strategy.device_bytes) == (16 * GIB, GIB // 4 + page_table + contexts)


def test_the_host_model_has_no_driver_to_wait_for() -> None:
    assert PinningStrategy.labs["cuda"] is None
    assert "driver" in (PinningStrategy.labs["host"] or "")
    assert set(PinningStrategyParams.preset("cuda", True).strategies) == set(STRATEGIES)
