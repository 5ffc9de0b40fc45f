"""The plan's answer: whether this host bears the amount, and what it takes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pinscope.planning.parameters import PlanParams
from pinscope.planning.plan import HostBudget, Plan
from pinscope.planning.prices import known_prices, plan_for
from pinscope.planning.reading import read_plan
from pinscope.planning.safety import safety_of
from pinscope.store.store import Store
from tests.data import synthetic

GIB = 2**30


@pytest.fixture
def plan() -> Plan:
    environment = synthetic.environment(1)
    with Store() as store:
        return plan_for(PlanParams(pinned=16 * GIB), known_prices(store, environment), environment)


def here(safe: int, total: int, *gpus: int) -> HostBudget:
    return HostBudget(safe * GIB, "free", total * GIB, bool(gpus), tuple(size * GIB for size in gpus))


@pytest.mark.parametrize(
    ("budget", "level", "beginning"),
    [
        (here(40, 80, 80), "safe", "Safe: this host bears 16 GiB, up to 40 GiB is safe. It takes about 623 ms"),
        (here(32, 64, 80), "care", "With care: 16 GiB is 25.0 % of this host's memory, and up to 32 GiB is safe."),
        (here(8, 64, 80), "not_safe", "Not safe: do not pin 16 GiB here, up to 8 GiB is safe. It would take about"),
        (here(8, 64), "elsewhere", "For another host: this one has no GPU. Pinning 16 GiB takes about"),
        (here(32, 64, 24), "elsewhere", "For another host: the plan is for GPUs of 80 GiB, this host's have 24 GiB."),
    ],
)  # fmt: skip
def test_the_verdict_begins_with_how_safe_it_is_here(
    plan: Plan, budget: HostBudget, level: str, beginning: str
) -> None:
    judged = replace(plan, budget=budget)
    verdict = read_plan(judged).verdict
    assert verdict is not None
    assert verdict.startswith(beginning)
    assert safety_of(judged).level == level
    assert "at the pace of an NVIDIA H200" in verdict
    assert "and 32 MiB of GPU memory for page tables." in verdict


def test_page_tables_that_take_much_of_a_gpu_call_for_care_and_more_gpus_than_here_for_another_host() -> None:
    environment = synthetic.environment(1)
    with Store() as store:
        prices = known_prices(store, environment)
    plenty = here(2000, 4000, 80)
    for changes, level in (
        ({"processes": 40}, "care"),
        ({"processes": 800}, "not_safe"),
        ({"all_gpus": 2}, "elsewhere"),
    ):
        params = PlanParams(pinned=64 * GIB, page_size="4KiB", processes=2).with_overrides(changes)
        assert safety_of(replace(plan_for(params, prices, environment), budget=plenty)).level == level, changes


def test_without_a_measured_pace_the_verdict_promises_no_time(plan: Plan) -> None:
    verdict = read_plan(replace(plan, paces=(), recipes=None, budget=here(40, 80, 80))).verdict
    assert verdict == (
        "Safe: this host bears 16 GiB, up to 40 GiB is safe. It takes 32 MiB of GPU memory for page tables."
    )
