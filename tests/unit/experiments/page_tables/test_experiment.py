"""page_tables takes no more than its budget says, however small its steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pinscope.experiments.contract import budget_of
from pinscope.experiments.page_tables import ways
from pinscope.experiments.page_tables.experiment import PageTables, PageTablesParams
from pinscope.experiments.page_tables.ways import Labels, Steps, steps_of
from pinscope.lab.backing import why_not_backing
from pinscope.lab.harness import Harness
from pinscope.lab.hostmodel import HostModelLab
from tests.unit.store.runs import environment

MIB = 2**20


def params(**overrides: Any) -> PageTablesParams:
    return PageTablesParams.preset("host", True).with_overrides({"memory": "registered"} | overrides)


def resident_bytes() -> int:
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS"))


@pytest.mark.parametrize("backing", ["4k", "thp", "shm"])
def test_small_steps_take_no_more_than_the_budget_says(backing: str) -> None:
    if backing == "thp" and (reason := why_not_backing("thp")):
        pytest.skip(reason)
    asked = params(total="4MiB", steps=64, backings=backing)
    budget = budget_of(PageTables(), asked, environment())
    with HostModelLab() as lab:
        before = resident_bytes()
        most = max(resident_bytes() for _ in PageTables().measure(asked, lab, Harness())) - before
    assert most <= budget.pinned_bytes + budget.pageable_bytes + 16 * MIB


def test_the_budget_counts_whole_pages_for_each_step() -> None:
    gigantic = environment().huge_pages.model_copy(update={"hugetlb_page_bytes": 2**30})
    machine = environment().model_copy(update={"huge_pages": gigantic})
    budget = budget_of(PageTables(), params(total="128MiB", steps=16, backings="hugetlb"), machine)
    assert budget.pinned_bytes == 128 * MIB
    assert budget.pinned_bytes + budget.pageable_bytes == budget.hugetlb_bytes == 16 * 2**30
    beside = budget_of(PageTables(), params(total="128MiB", steps=16, backings="4k,hugetlb"), machine)
    assert (beside.pageable_bytes, beside.hugetlb_bytes) == (0, 0)  # reserved beforehand, or left out
    tiny = budget_of(PageTables(), params(total=8, steps=1024, backings="4k"), machine)
    assert (tiny.pinned_bytes, tiny.hugetlb_bytes) == (1024 * 4096, 0)


def test_what_a_host_cannot_give_is_said_once_a_reason_and_the_rest_is_measured() -> None:
    notes: list[str] = []
    asked = params(total="8MiB", steps=4, memory="registered,portable,created,pool", backings="4k,shm_open,hugetlb_1g")
    with HostModelLab() as lab:
        found = list(PageTables().measure(asked, lab, Harness(note=notes.append)))
    assert {row.backing for row in found} == {"4k", "shm_open"}
    left_out = [note.split(".")[0] for note in notes]
    assert left_out == [f"Left out: {way}" for way in ("registered (hugetlb_1g)", "portable (4k)", "created; pool")]


def test_over_pages_of_1_gib_a_step_is_a_page_and_there_are_no_more_than_are_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gigantic, asked = Labels("registered", "hugetlb_1g"), Steps(64 * MIB, 192)
    monkeypatch.setattr(ways, "free_gigantic_pages", lambda: 5)
    assert steps_of(gigantic, asked) == Steps(2**30, 5)
    monkeypatch.setattr(ways, "free_gigantic_pages", lambda: 50)
    assert steps_of(gigantic, asked) == Steps(2**30, 12)
    assert steps_of(Labels("registered", "4k"), asked) == asked


@pytest.mark.parametrize("quick", [True, False])
def test_the_presets_take_what_they_are_asked_to_pin(quick: bool) -> None:
    preset = PageTablesParams.preset("cuda", quick)
    two_mib = environment().huge_pages.model_copy(update={"hugetlb_page_bytes": 2 * MIB})
    machine = environment().model_copy(update={"huge_pages": two_mib})
    budget = budget_of(PageTables(), preset, machine)
    assert (budget.pinned_bytes, budget.pageable_bytes) == (preset.total, 0)
