"""The plan's answer: whether this host bears the amount, and what it takes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pinscope.planning.plan import HostBudget, Plan, PlanParams, plan_for, safety_of
from pinscope.planning.prices import known_prices
from pinscope.planning.reading import read_plan
from pinscope.records.environment import Environment, NumaNode
from pinscope.store.store import Store
from tests.data import synthetic

GIB = 2**30


@pytest.fixture
def plan() -> Plan:
    environment = synthetic.environment(1)
    with Store() as store:
        return plan_for(PlanParams(pinned=16 * GIB), known_prices(store, environment), environment)


UNKNOWN = "give --host-memory or --like."


def here(safe: int, total: int, *gpus: int) -> HostBudget:
    return HostBudget(safe * GIB, "free", total * GIB, bool(gpus), tuple(size * GIB for size in gpus))


@pytest.mark.parametrize(
    ("budget", "level", "beginning"),
    [
        (here(40, 80, 80), "safe", "Safe: this host bears 16 GiB, up to 40 GiB is safe, pinning takes about"),
        (here(32, 64, 80), "care", "With care: 16 GiB is 25.0 % of this host's memory, up to 32 GiB is safe."),
        (here(8, 64, 80), "not_safe", "Not safe: do not pin 16 GiB on this host, up to 8 GiB is safe."),
        (here(8, 64), "elsewhere",
         f"For another host: 16 GiB takes about 620 ms and 32 MiB per GPU; {UNKNOWN}"),
        (here(32, 64, 24), "elsewhere", "For another host: 16 GiB takes about"),
        (replace(here(32, 64, 24), host="a host like h100"), "elsewhere",
         "For another host: the plan is for GPUs of 80 GiB, those of a host like h100 have 24 GiB; give"),
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


def test_contexts_and_page_tables_that_take_much_of_a_gpu_call_for_care_and_more_gpus_for_another_host() -> None:
    environment = synthetic.environment(1)
    with Store() as store:
        prices = known_prices(store, environment)
    plenty = here(2000, 4000, 80)
    for changes, level in (
        ({"processes": 12}, "care"),
        ({"processes": 40, "pinned": GIB}, "care"),
        ({"processes": 150, "pinned": GIB}, "not_safe"),
        ({"processes": 150, "pinned": GIB, "all_gpus": 150}, "elsewhere"),
        ({"processes": 300, "pinned": GIB, "gpu_memory": 140 * GIB}, "not_safe"),  # on any host
        ({"processes": 800}, "not_safe"),
        ({"all_gpus": 2}, "elsewhere"),
    ):
        params = PlanParams(pinned=64 * GIB, page_size="4KiB", processes=2).with_overrides(changes)
        assert safety_of(replace(plan_for(params, prices, environment), budget=plenty)).level == level, changes


def judged(changes: dict[str, object], environment: Environment) -> tuple[str, str]:
    """Level and verdict of a plan on a machine."""
    with Store() as store:
        made = plan_for(PlanParams().with_overrides(changes), known_prices(store, environment), environment)
    return safety_of(made).level, read_plan(made).verdict or ""


JUDGED: list[tuple[dict[str, object], str, str]] = [
    ({"pinned": 60 * GIB, "processes": 8}, "not_safe", "do not pin 480 GiB (8 processes) on this host"),
    ({"pinned": 8 * GIB, "processes": 5}, "not_safe", "40 GiB (5 processes)"),
    ({"pinned": 8 * GIB, "processes": 5, "shared": True}, "safe", "this host bears 8 GiB"),
    ({"pinned": 8 * GIB, "processes": 4}, "care", "32 GiB (4 processes) is 25.0 % of this host's"),
    ({"pinned": GIB, "processes": 2}, "safe", "bears 2 GiB (2 processes), up to 32 GiB is safe, pinning takes about"),
    ({"pinned": GIB, "processes": 8, "all_gpus": 8}, "elsewhere", "8 GiB takes about 310 ms and 2 MiB per GPU"),
    ({"pinned": 9 * GIB, "processes": 3}, "not_safe", "through PyTorch 3 processes pin 48 GiB, up to 32 GiB is"),
    ({"pinned": 64 * GIB, "processes": 4, "host_memory": 2**40}, "care", "256 GiB (4 processes) is 25.0"),
    ({"pinned": 60 * GIB, "processes": 8, "host_memory": 126 * GIB}, "not_safe", "on that host, up to 63 GiB is safe"),
    ({"pinned": 40 * GIB, "host_memory": 126 * GIB}, "not_safe", "through PyTorch one tensor pins 64 GiB, up to 63 GiB "
     "is safe. Through CUDA 40 GiB is."),
    ({"pinned": 40 * GIB, "host_memory": 126 * GIB, "through": "cuda"}, "care", "40 GiB is 31.7 % of that host's"),
    ({"pinned": 40 * GIB, "host_memory": 126 * GIB, "through": "cupy"}, "not_safe", "do not pin 64 GiB (CuPy) on"),
    ({"pinned_total": 256 * GIB, "processes": 4, "host_memory": 2**40}, "care", "256 GiB (4 processes) is 25.0"),
    ({"pinned": GIB, "processes": 8, "all_gpus": 8, "host_memory": 126 * GIB}, "safe", "that host bears 8 GiB (8 proc"),
    ({"pinned": 8, "processes": 4096, "all_gpus": 4096, "host_memory": 2**40}, "safe", "32 KiB (4096 processes"),
    ({"pinned": 2**62, "processes": 4096, "all_gpus": 4096, "host_memory": 2**40}, "not_safe", "of a GPU's 80 GiB"),
]  # fmt: skip


def test_the_sum_of_all_processes_is_judged_and_named() -> None:
    for changes, level, said in JUDGED:
        judgement, verdict = judged(changes, synthetic.environment(1))
        assert (judgement, said in verdict) == (level, True), verdict
        assert len(verdict) <= 150
        assert len(verdict.split()) <= 20


def test_what_one_process_pins_beyond_a_numa_node_calls_for_care() -> None:
    for sizes, pinned, warned in [
        ((60, 60), 8, False), ((6, 7), 8, True), ((7, 0), 8, False), ((8, 9), 8, False),
    ]:  # fmt: skip
        nodes = tuple(
            NumaNode(number=number, processors="", memory_bytes=size * GIB, available_bytes=size * GIB)
            for number, size in enumerate(sizes)
        )
        host = synthetic.environment(1).model_copy(update={"nodes": nodes})
        level, verdict = judged({"pinned": pinned * GIB}, host)
        assert (level, "8 GiB is more than a NUMA node's 7 GiB" in verdict) == (
            ("care", True) if warned else ("safe", False)
        )


def test_what_is_safe_is_a_range_up_to_all_that_others_leave() -> None:
    here = synthetic.environment(1)
    limits = here.limits.model_copy(update={"cgroup_headroom_bytes": 16 * GIB})
    wsl = here.model_copy(update={"virtualization": "WSL2"})
    for host, memory, ends in (
        (here, None, (32 * GIB, 64 * GIB)),
        (here.model_copy(update={"limits": limits}), None, (8 * GIB, 16 * GIB)),
        (here, 2**40, (2**39, 2**40)),
        (wsl, None, (None, None)),
    ):
        with Store() as store:
            made = plan_for(PlanParams(host_memory=memory), known_prices(store, host), host)
        figures = {quantity.name.split(" on ")[0]: quantity.value for quantity in read_plan(made).headline}
        assert (figures["Safe to pin"], figures["At most, if all else stays as it is"]) == ends
        assert (made.budget.safe_bytes, made.budget.most_bytes) == ends


@pytest.mark.parametrize(("pinned", "level", "said"), [
    (GIB, "unknown", "Not known: WSL2 allows far less than 128 GiB, and how much is not known."),
    (64 * GIB, "not_safe", "Not safe: do not pin 64 GiB on this host, WSL2 allows far less than 128 GiB."),
])  # fmt: skip
def test_nothing_is_called_safe_in_wsl2(pinned: int, level: str, said: str) -> None:
    wsl = synthetic.environment(1).model_copy(update={"virtualization": "Docker container, WSL2"})
    judgement, verdict = judged({"pinned": pinned}, wsl)
    assert (judgement, verdict.startswith(said)) == (level, True), verdict
    with Store() as store:
        prices = known_prices(store, wsl)
    safe = read_plan(plan_for(PlanParams(pinned=pinned), prices, wsl)).headline[0]
    assert (safe.value, safe.reason) == (None, "not known in WSL2")
    elsewhere = plan_for(PlanParams(pinned=pinned, host_memory=2**40), prices, wsl)
    assert safety_of(elsewhere).level == "safe"


def test_a_control_group_below_the_host_bounds_the_sum() -> None:
    here = synthetic.environment(1)
    limits = here.limits.model_copy(update={"cgroup_headroom_bytes": 16 * GIB, "cgroup_limit_bytes": 16 * GIB})
    boxed = here.model_copy(update={"limits": limits})
    assert judged({"pinned": 2 * GIB, "processes": 8}, here)[0] == "safe"
    level, verdict = judged({"pinned": 2 * GIB, "processes": 8}, boxed)
    assert (level, "up to 8 GiB is safe" in verdict) == ("not_safe", True)
    assert judged({"pinned": 2 * GIB, "processes": 8, "shared": True}, boxed)[0] == "safe"


@pytest.mark.parametrize(("memory", "gpus", "level"), [
    (24, 2, "safe"), (80, 1, "safe"), (80, 2, "elsewhere"), (40, 1, "elsewhere"),
])  # fmt: skip
def test_each_gpu_that_is_used_must_be_as_large_as_the_plan_says(
    plan: Plan, memory: int, gpus: int, level: str
) -> None:
    demand = replace(plan.demand, gpus=gpus, all_gpus=gpus, gpu_memory_bytes=memory * GIB)
    assert safety_of(replace(plan, demand=demand, budget=here(60, 120, 24, 80))).level == level


def test_without_a_measured_pace_the_verdict_promises_no_time(plan: Plan) -> None:
    verdict = read_plan(replace(plan, paces=(), recipes=None, budget=here(40, 80, 80))).verdict
    assert verdict == ("Safe: this host bears 16 GiB, up to 40 GiB is safe.")
