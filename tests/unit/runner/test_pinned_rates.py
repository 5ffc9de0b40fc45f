"""Which run says how fast pinned memory is copied, and small pieces are gathered."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinscope.runner.tracing import pinned_rates
from pinscope.store.store import Store
from tests.data import synthetic


def test_recordings_say_it_where_this_machine_measured_nothing_and_say_so(tmp_path: Path) -> None:
    with Store(f"sqlite:///{tmp_path}/runs.sqlite") as store:
        rates = pinned_rates(store, synthetic.environment(1))
    assert rates["pinned_from"].startswith("recording on NVIDIA H")
    assert 20e9 < rates["pinned_h2d"] < 60e9
    assert 1e9 < rates["pageable_h2d"] < rates["pinned_h2d"]
    assert rates["gathered_bytes"] == sorted(rates["gathered_bytes"])
    for direction in ("h2d", "d2h"):
        assert len(rates[f"gathered_{direction}"]) == len(rates["gathered_bytes"])
        assert all(1e9 < rate < rates[f"pinned_{direction}"] for rate in rates[f"gathered_{direction}"])
    assert rates["gathered_from"].startswith("recording on NVIDIA H")


def test_a_run_of_this_machine_counts_before_recordings(tmp_path: Path) -> None:
    run = synthetic.run("bandwidth")
    with Store(f"sqlite:///{tmp_path}/runs.sqlite") as store:
        store.import_runs([(run, synthetic.bandwidth_rows())])
        rates = pinned_rates(store, run.environment)
    assert rates["pinned_from"] == f"run {run.id} on this machine"
    assert rates["gathered_from"].startswith("recording on")


@pytest.mark.parametrize("experiment", ["bandwidth", "scatter"])
def test_a_run_that_makes_no_sense_is_passed_over(experiment: str, tmp_path: Path) -> None:
    run = synthetic.run("bandwidth").model_copy(update={"experiment": experiment})
    with Store(f"sqlite:///{tmp_path}/runs.sqlite") as store:
        store.import_runs([(run, [{"repeat": 0, "warmup": False, "way": "cpu", "threads": 1}])])
        rates = pinned_rates(store, run.environment)
    assert "recording on" in rates["pinned_from"]
    assert "recording on" in rates["gathered_from"]
