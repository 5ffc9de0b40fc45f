"""page_tables takes no more than its budget says, however small its steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pinscope.experiments.page_tables.experiment import PageTables, PageTablesParams
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
    budget = PageTables().budget(asked, environment())
    with HostModelLab() as lab:
        before = resident_bytes()
        most = max(resident_bytes() for _ in PageTables().measure(asked, lab, Harness())) - before
    assert most <= budget.pinned_bytes + budget.pageable_bytes + 16 * MIB


def test_the_budget_counts_whole_pages_for_each_step() -> None:
    gigantic = environment().huge_pages.model_copy(update={"hugetlb_page_bytes": 2**30})
    machine = environment().model_copy(update={"huge_pages": gigantic})
    budget = PageTables().budget(params(total="128MiB", steps=16, backings="4k,hugetlb"), machine)
    assert budget.pinned_bytes == 128 * MIB
    assert budget.pinned_bytes + budget.pageable_bytes == budget.hugetlb_bytes == 16 * 2**30
    tiny = PageTables().budget(params(total=8, steps=1024, backings="4k"), machine)
    assert (tiny.pinned_bytes, tiny.hugetlb_bytes) == (1024 * 4096, 0)


@pytest.mark.parametrize("quick", [True, False])
def test_the_presets_take_what_they_are_asked_to_pin(quick: bool) -> None:
    preset = PageTablesParams.preset("cuda", quick)
    two_mib = environment().huge_pages.model_copy(update={"hugetlb_page_bytes": 2 * MIB})
    machine = environment().model_copy(update={"huge_pages": two_mib})
    budget = PageTables().budget(preset, machine)
    assert (budget.pinned_bytes, budget.pageable_bytes) == (preset.total, 0)
