"""Several runs one after the other: which of them a machine can hold, and that they are measured, or cancelled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from pinscope.errors import InvalidParameter, NotEnoughMemory
from pinscope.experiments.registry import EXPERIMENTS
from pinscope.probes.environment import capture_environment
from pinscope.records.environment import Environment
from pinscope.runner.jobs import ALL, Request, Suite, possible, select_experiments
from pinscope.store.store import Store
from tests.conftest import Outliving
from tests.data import synthetic
from tests.data.waiting import until

REQUESTS = (Request("bandwidth", "host", quick=True), Request("overlap", "host", quick=True))
SHORT = {"sizes": "64KiB", "memory": "pinned", "directions": "h2d", "precision": "50%", "time_limit": "0.2"}
LONG = {**SHORT, "precision": "0.0001%", "time_limit": "60", "repeats": "10000"}


def lockable(nbytes: int) -> Environment:
    environment: Environment = synthetic.environment(devices=0)
    limits = environment.limits.model_copy(update={"memlock_headroom_bytes": nbytes})
    return environment.model_copy(update={"limits": limits})


def test_an_experiment_that_does_not_fit_is_left_out_by_name() -> None:
    chosen = possible(REQUESTS, lockable(8 * 2**20))
    assert chosen.requests == REQUESTS[:1]
    assert len(chosen.left_out) == 1
    assert chosen.left_out[0].startswith("overlap: the run needs")
    chosen = possible(REQUESTS, lockable(2**30))
    assert (chosen.requests, chosen.left_out) == (REQUESTS, ())


@pytest.mark.parametrize(
    ("requests", "nbytes", "refusal"),
    [
        (REQUESTS, 2**12, NotEnoughMemory),  # none fits
        ([*REQUESTS, Request("overlap", "host", overrides={"chunk": "-1"})], 2**30, InvalidParameter),
        ([Request("bandwidth", "host", overrides={"sizes": "1TiB"}), REQUESTS[1]], 2**30, NotEnoughMemory),
    ],
)
def test_bad_input_or_settings_that_do_not_fit_refuse_all(
    requests: Sequence[Request], nbytes: int, refusal: type[Exception]
) -> None:
    with pytest.raises(refusal):
        possible(requests, lockable(nbytes))


def test_all_stands_for_the_experiments_of_a_lab_and_names_the_others() -> None:
    chosen = select_experiments(Request(ALL, "host", quick=True), lockable(2**34))
    names = {entry.name: entry.experiment.labs.get("host") is None for entry in EXPERIMENTS}
    assert [request.experiment for request in chosen.requests] == [
        name for name, runs_here in names.items() if runs_here
    ]
    named = {line.split()[0].rstrip(":") for line in chosen.left_out}
    assert named == {name for name, runs_here in names.items() if not runs_here}


@pytest.fixture
def begin(outliving: Outliving) -> Iterator[Callable[..., tuple[Store, Suite]]]:
    """Starts a suite; whatever becomes of it, nothing of it goes on after the test."""
    outliving.threads.add("pinscope-launcher_0")  # lives as long as this process, by design
    begun: list[tuple[Store, Suite]] = []

    def begin(*overrides: dict[str, str]) -> tuple[Store, Suite]:
        store = Store()
        requests = [Request("bandwidth", "host", quick=True, overrides=settings) for settings in overrides]
        suite = Suite(store, requests, capture_environment())
        begun.append((store, suite))
        suite.start()
        return store, suite

    yield begin
    for store, suite in begun:
        suite.cancel()
        suite.join()
        store.close()


def test_all_steps_are_measured_in_their_order(begin: Callable[..., tuple[Store, Suite]]) -> None:
    store, suite = begin(SHORT, {**SHORT, "sizes": "1MiB"})
    suite.join()
    assert suite.has_ended
    assert suite.current is None
    assert suite.fraction() == 1.0
    runs = [store.run(step.run_id or "") for step in suite.steps]
    assert [run.status for run in runs] == ["done", "done"]
    assert [run.params["sizes"] for run in runs] == [[2**16], [2**20]]
    assert runs[0].finished_at is not None
    assert runs[0].finished_at <= runs[1].created_at


def test_a_cancelled_suite_keeps_what_it_measured_and_begins_no_other_run(
    begin: Callable[..., tuple[Store, Suite]],
) -> None:
    store, suite = begin(LONG, SHORT)
    first = until(lambda: suite.steps[0].run_id)
    until(lambda: store.run(first).observations)
    assert 0 <= suite.fraction() < 1
    suite.cancel()
    suite.join()
    assert store.run(first).status == "cancelled"
    assert store.run(first).observations > 0
    assert suite.steps[1].run_id is None
    assert len(store.runs(recordings=False)) == 1


def test_a_step_that_cannot_begin_says_why_and_the_next_is_measured(
    begin: Callable[..., tuple[Store, Suite]], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = capture_environment()
    full = here.model_copy(update={"limits": here.limits.model_copy(update={"memlock_headroom_bytes": 2**12})})
    seen = iter([full, here])
    monkeypatch.setattr("pinscope.runner.jobs.capture_environment", lambda: next(seen))
    store, suite = begin(SHORT, SHORT)
    suite.join()
    assert "the run needs" in (suite.steps[0].problem or "")
    assert suite.steps[0].run_id is None
    assert store.run(suite.steps[1].run_id or "").status == "done"
