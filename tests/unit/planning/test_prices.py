"""Where a plan's prices come from: runs of this machine first, then recordings, then an assumption that says so."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from pinscope.analysis.models import ENTRY_BYTES
from pinscope.errors import InvalidParameter
from pinscope.planning.plan import PlanParams, host_and_prices, plan_for, why_elsewhere
from pinscope.planning.prices import known_prices
from pinscope.records.environment import Environment
from pinscope.records.run import Run
from pinscope.store import store as store_module
from pinscope.store.documents import StoredRow
from pinscope.store.recordings import recorded_observations, recorded_runs
from pinscope.store.store import Store
from tests.data import synthetic
from tests.unit.experiments.registration.test_arithmetic import rows as registration_rows

GIB = 2**30


@pytest.fixture
def no_recordings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "recorded_runs", list)


def own(
    experiment: str, environment: Environment, run_id: str = "an-own-run", age: int = 0
) -> tuple[Run, list[StoredRow]]:
    """What the recording of that experiment holds, as if this machine had measured it."""
    recorded = next(run for run in recorded_runs() if run.experiment == experiment)
    here = recorded.environment.model_copy(update={"machine_id": environment.machine_id})
    changes = {
        "id": run_id, "recording": False, "environment": here,
        "created_at": recorded.created_at - timedelta(seconds=age),
    }  # fmt: skip
    return recorded.model_copy(update=changes), recorded_observations(recorded.id)


def test_without_any_run_pages_are_assumed_small_and_nothing_else_is_known(store: Store, no_recordings: None) -> None:
    prices = known_prices(store, synthetic.environment())
    assert (prices.page.page_bytes, prices.page.origin.source) == (4096, "assumed")
    assert (prices.context, prices.paces, prices.recorded) == (None, (), None)


def test_without_own_runs_the_recordings_tell_and_are_named(store: Store) -> None:
    prices = known_prices(store, synthetic.environment(0))
    assert (prices.page.page_bytes, prices.page.origin.source) == (4096, "recorded")
    assert prices.page.origin.device == "NVIDIA H200"
    assert prices.page.per_byte == ENTRY_BYTES / 4096 == pytest.approx(prices.page.slope, rel=0.02)
    assert prices.context is not None
    assert 500 * 2**20 < prices.context.bytes < 560 * 2**20
    assert {pace.origin.source for pace in prices.paces} == {"recorded"}
    assert "idle" not in {pace.strategy for pace in prices.paces}
    assert prices.recorded is not None


def test_runs_of_this_machine_come_before_recordings(store: Store) -> None:
    here = synthetic.environment()
    store.import_runs([own("page_tables", here), own("pinning_strategy", here, "another-own-run")])
    prices = known_prices(store, here)
    assert (prices.page.origin.source, prices.page.origin.run) == ("measured", "an-own-run")
    assert {pace.origin.run for pace in prices.paces} == {"another-own-run"}
    assert prices.context is not None
    assert prices.context.origin.source == "recorded"


@pytest.mark.parametrize(("name", "of"), [
    ("NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3"), ("NVIDIA H200", "NVIDIA H200"), ("Another GPU", "NVIDIA H200"),
])  # fmt: skip
def test_of_recordings_those_of_the_same_gpu_come_first(store: Store, name: str, of: str) -> None:
    here = synthetic.environment()
    here = here.model_copy(update={"devices": (here.devices[0].model_copy(update={"name": name}),)})
    assert {pace.origin.device for pace in known_prices(store, here).paces} == {of}


def test_a_plan_for_a_host_like_another_has_its_limits_its_gpus_and_its_prices(store: Store) -> None:
    here, there = synthetic.environment(), synthetic.environment(2)
    limits = there.limits.model_copy(update={"host_available_bytes": 2**40})
    there = there.model_copy(update={"machine_id": "elsewhere", "limits": limits})
    store.import_runs([own("pinning_strategy", here, "a-run-here"), own("pinning_strategy", there, "b-run-there")])
    run, rows = own("pinning_strategy", there, "c-wanted", age=60)
    store.import_runs([(run.model_copy(update={"environment": there}), rows)])
    host, prices = host_and_prices(PlanParams(like="c-wan"), store, here)
    assert {(pace.origin.source, pace.origin.run) for pace in prices.paces} == {("recorded", "c-wanted")}
    made = plan_for(PlanParams(like="c-wan", all_gpus=2, processes=2).on(host), prices, host)
    assert (made.budget.host, made.budget.safe_bytes) == ("a host like c-wan", 2**39)
    assert why_elsewhere(made) is None
    host, prices = host_and_prices(PlanParams(like="a-run"), store, here)
    assert {pace.origin.source for pace in prices.paces} == {"measured"}
    host, prices = host_and_prices(PlanParams(like="h100"), store, here)
    assert {pace.origin.device for pace in prices.paces} == {"NVIDIA H100 80GB HBM3"} == {host.devices[0].name}
    for word in ("abacus", "20261122"):  # none, and several
        with pytest.raises(InvalidParameter, match=r"like: .*run"):
            host_and_prices(PlanParams(like=word), store, here)


def shared_run(environment: Environment, run_id: str, *cases: tuple[str, int, float], age: int = 0) -> Any:
    """(sharing, processes, seconds until all of them had 8 GiB pinned) as a run of this machine tells it."""
    run, _ = own("registration", environment, run_id, age)
    return run, [
        row
        for sharing, count, seconds in cases
        for row in registration_rows("each_registers", count, sharing=sharing, pinned_after=seconds)
    ]


@pytest.mark.parametrize(
    ("processes", "pinned", "run", "seconds"),
    [
        (2, 8, "newest", {"memfd": 3.0}),
        (3, 8, "oldest", {"memfd": 4.0, "hugetlb": 2.0}),  # those of 4: the next larger number that was measured
        (4, 16, "oldest", {"memfd": 8.0, "hugetlb": 4.0}),
        (5, 8, None, {}),  # nobody measured so many
        (4, 129, "oldest", {"memfd": 64.5, "hugetlb": 32.25}),
    ],
)
def test_shared_memory_is_priced_by_the_newest_run_of_so_many_processes(
    store: Store, no_recordings: None, processes: int, pinned: int, run: str | None, seconds: dict[str, float]
) -> None:
    here = synthetic.environment()
    old = (("memfd", 1, 2.0), ("memfd", 4, 4.0), ("hugetlb", 4, 2.0), ("shm_open", 4, 1.0))
    store.import_runs([shared_run(here, "newest", ("memfd", 2, 3.0)), shared_run(here, "oldest", *old, age=10)])
    params = PlanParams(pinned=pinned * GIB, processes=processes, shared=True)
    host, prices = host_and_prices(params, store, here)
    made = plan_for(params, prices, host)
    assert {pace.strategy: pytest.approx(pace.seconds_for(pinned * GIB)) for pace in made.paces} == seconds
    assert {pace.origin.run for pace in made.paces} == ({run} if run else set())
    assert (made.recipe is not None) == bool(seconds)


def test_a_run_that_says_nothing_of_the_amount_hides_no_recording_that_does(store: Store) -> None:
    here = synthetic.environment()
    run, rows = own("pinning_strategy", here, "a-quick-run")
    store.import_runs([(run, [row | {"bytes": row["bytes"] // 16} for row in rows])])
    origins = [
        {pace.origin.source for pace in host_and_prices(PlanParams(pinned=size * GIB), store, here)[1].paces}
        for size in (16, 40, 300)
    ]
    assert origins == [{"measured"}, {"recorded"}, {"measured"}]  # far from both, this machine's own


def test_the_newest_run_that_tells_is_taken(store: Store) -> None:
    here = synthetic.environment()
    newest, rows = own("page_tables", here, "the-newest-saw-nothing")
    middle = own("page_tables", here, "the-middle", age=10)
    store.import_runs([(newest, rows[:1]), middle, own("page_tables", here, "the-oldest", age=20)])
    assert known_prices(store, here).page.origin.run == "the-middle"


@pytest.mark.parametrize("lab", ["cuda", "host"])
def test_runs_of_other_machines_and_of_the_host_model_tell_nothing_of_a_gpu_here(store: Store, lab: str) -> None:
    here = synthetic.environment()
    machine = here if lab == "host" else here.model_copy(update={"machine_id": "elsewhere"})
    run, rows = own("page_tables", machine)
    store.import_runs([(run.model_copy(update={"lab": lab}), rows)])
    assert known_prices(store, here).page.origin.source == "recorded"


def test_a_slope_that_fits_no_page_size_is_taken_as_it_is(store: Store) -> None:
    here = synthetic.environment()
    run, rows = own("page_tables", here)
    for row in rows:
        for meter in ("nvml_used_bytes", "device_used_bytes"):
            row[meter] *= 3
    store.import_runs([(run, rows)])
    price = known_prices(store, here).page
    assert price.origin.source == "measured"
    assert price.per_byte == price.slope
    assert price.per_byte == pytest.approx(3 * ENTRY_BYTES / 4096, rel=0.02)


@pytest.mark.parametrize("experiment", ["page_tables", "registration", "pinning_strategy"])
@pytest.mark.parametrize("damage", ["a field is missing", "it took no time", "nothing was pinned"])
def test_rows_that_make_no_sense_tell_nothing(store: Store, experiment: str, damage: str) -> None:
    here = synthetic.environment()
    run, rows = own(experiment, here)
    if damage == "a field is missing":
        rows = [{key: value for key, value in row.items() if key in ("repeat", "warmup", "bytes")} for row in rows]
    else:
        emptied = "_seconds" if damage == "it took no time" else "bytes"
        rows = [{key: 0 if key.endswith(emptied) and value else value for key, value in row.items()} for row in rows]
    store.import_runs([(run, rows)])
    prices = known_prices(store, here)
    demand = PlanParams(pinned=2**36)
    assert plan_for(demand, prices, here).sharings
    if experiment == "pinning_strategy":
        assert {pace.origin.source for pace in prices.paces} == {"recorded"}
