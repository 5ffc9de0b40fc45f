"""Measuring, planning and comparing from a program."""

from __future__ import annotations

from pathlib import Path

import pytest

import pinscope
from pinscope.analysis.comparison import compare
from pinscope.errors import BadInput, InvalidParameter, MeasurementFailed
from pinscope.python.session import Comparison
from pinscope.runner import jobs
from pinscope.store.store import Store
from tests.data.simulated_runs import Host

LEAST = {"sizes": "64KiB", "repeats": 8, "precision": 0.5, "directions": "h2d", "memory": "pinned"}


def test_a_run_is_measured_stored_named_and_told_how_far_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    said: list[tuple[float, str]] = []
    run = pinscope.run(
        "bandwidth", lab="host", quick=True, name="mine", tags=["x"], progress=lambda *at: said.append(at), **LEAST
    )
    assert (run.record.status, run.record.params["sizes"], run.name, run.record.tags) == (
        "done",
        [65536],
        "mine",
        ("x",),
    )
    assert len(run.rows) == run.record.observations > 8
    assert pinscope.open("mine").record == pinscope.runs("bandwidth").latest.record == run.record
    assert said[-1][0] <= 1.0
    assert capsys.readouterr() == ("", ""), "a function of one's own is told instead"


def test_ctrl_c_cancels_the_run_and_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(fraction: float, message: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pinscope.run("bandwidth", lab="host", progress=interrupt, sizes="64KiB", repeats=10000, precision=1e-9)
    with Store() as store:
        (kept,) = store.runs(recordings=False)
    assert kept.status == "cancelled"


def test_a_run_that_breaks_off_raises_and_says_where_its_data_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs.isolation, "command", lambda *_: ["false"])
    with pytest.raises(MeasurementFailed, match=r"is interrupted: the process that measured it ended .*pinscope.open"):
        pinscope.run("bandwidth", lab="host", progress=False, **LEAST)


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        ({"experiment": "bandwith"}, "no experiment 'bandwith'"),
        ({"experiment": "bandwidth", "size": 4096}, "size"),
        ({"experiment": "bandwidth", "tags": ["a b"]}, "a tag has 1 to 40"),
    ],
)
def test_bad_input_is_refused_before_anything_begins(asked: dict[str, object], complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        pinscope.run(lab="host", **asked)  # type: ignore[arg-type]
    assert list(pinscope.runs()) == []


def test_a_plan_says_what_an_amount_takes_and_whether_it_is_safe() -> None:
    plan = pinscope.plan("16GiB", like="h200", processes=2)
    assert (plan.safety.level, plan.plan.demand.total_bytes) == ("safe", 32 * 2**30)
    assert plan.verdict in repr(plan)
    assert float(plan.figures["Page table of one process, on one GPU"]) == 32 * 2**20
    with pytest.raises(InvalidParameter, match="give pinned, for each process, or pinned_total"):
        pinscope.plan(processes=2)
    with pytest.raises(InvalidParameter, match="hundred"):
        pinscope.plan("1GiB", hundred=1)


def test_live_is_a_snapshot_of_this_host_before_and_after_its_room_is_loaded() -> None:
    first, again = pinscope.live(), pinscope.live()
    assert first.taken_at < again.taken_at
    assert first.host.model_fields_set == again.host.model_fields_set


H200, H100 = pinscope.runs("bandwidth", recordings=True)[:2]


def test_two_runs_have_one_row_for_each_shared_figure_with_its_ratio_and_what_differs_in_the_machines() -> None:
    diff = pinscope.compare(H100.id, H200)
    assert diff.machines["GPU"] == ("NVIDIA H100 80GB HBM3", "NVIDIA H200")
    assert diff.verdict in repr(diff)
    row = diff.frame.dropna(subset=["ratio"]).iloc[-1]
    assert row["ratio"] == pytest.approx(row["b"] / row["a"])
    assert row["ratio.low"] <= row["ratio"] <= row["ratio.high"]
    assert diff.came
    assert not diff.went


def test_cells_are_worse_than_a_share_only_where_their_whole_interval_is() -> None:
    host = Host(1)
    slow = host.side("B", 3, lambda memory, size: 1.15 if memory == "pinned" and size >= 2**20 else 1.0)
    diff = Comparison(compare(host.side("A", 3), slow))
    assert {cell.labels["memory"] for cell in diff.worse(than=0.05)} == {"pinned"}
    assert len(diff.worse()) >= len(diff.worse(than=0.05)) > 0
    assert diff.worse(than=0.3) == diff.better(than=0.05) == []


def test_a_side_without_runs_is_refused_and_several_a_side_count_together(tmp_path: Path) -> None:
    with pytest.raises(BadInput):
        pinscope.compare(H100, [])
    diff = pinscope.compare([H100], [H200])
    assert diff.save(tmp_path / "driver.json").exists()
