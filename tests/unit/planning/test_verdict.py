"""The plan's answer: whether this host bears the amount, and what it takes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pinscope.planning.parameters import PlanParams
from pinscope.planning.plan import HostBudget, Plan
from pinscope.planning.prices import known_prices, plan_for
from pinscope.planning.reading import read_plan
from pinscope.store.store import Store
from tests.data import synthetic

GIB = 2**30


@pytest.fixture
def plan() -> Plan:
    environment = synthetic.environment(1)
    with Store() as store:
        return plan_for(PlanParams(pinned=16 * GIB), known_prices(store, environment), environment)


@pytest.mark.parametrize(
    ("budget", "beginning"),
    [
        (
            HostBudget(32 * GIB, "free", 64 * GIB, True),
            "16 GiB is safe to pin here (up to 32 GiB). It takes about 623 ms",
        ),
        (
            HostBudget(8 * GIB, "free", 64 * GIB, True),
            "Do not pin 16 GiB here: up to 8 GiB is safe. It would take about",
        ),
        (
            HostBudget(8 * GIB, "free", 64 * GIB, False),
            "This host has no GPU, so the plan is for another one: to pin 16",
        ),
    ],
)
def test_the_verdict_says_whether_this_host_bears_it(plan: Plan, budget: HostBudget, beginning: str) -> None:
    verdict = read_plan(replace(plan, budget=budget)).verdict
    assert verdict is not None
    assert verdict.startswith(beginning)
    assert "at the pace of an NVIDIA H200" in verdict
    assert verdict.endswith("and 32 MiB of GPU memory for page tables.")


def test_without_a_measured_pace_the_verdict_promises_no_time(plan: Plan) -> None:
    verdict = read_plan(
        replace(plan, paces=(), recipes=None, budget=HostBudget(32 * GIB, "free", 64 * GIB, True))
    ).verdict
    assert verdict == "16 GiB is safe to pin here (up to 32 GiB). It takes 32 MiB of GPU memory for page tables."
