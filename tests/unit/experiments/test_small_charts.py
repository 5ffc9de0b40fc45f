"""The small charts of a GPU card: bars with what they come to, of the recordings; none where there is nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pinscope.dashboard.machine import SHOWN
from pinscope.experiments.registry import checked_rows
from pinscope.records.run import ExperimentRun, Run
from pinscope.store.recordings import recorded_observations, recorded_runs

RECORDED = [run for run in recorded_runs() if run.experiment in SHOWN]


@pytest.mark.parametrize("run", RECORDED, ids=lambda run: run.id)
def test_each_recording_fits_a_card(run: Run) -> None:
    assert isinstance(run, ExperimentRun)
    chart = SHOWN[run.experiment](run, checked_rows(run.experiment, recorded_observations(run.id)))
    assert chart is not None
    written = {annotation.text for annotation in chart.figure.layout.annotations}
    bars = {name: text for trace in chart.figure.data for name, text in zip(trace.y, trace.customdata, strict=True)}
    assert 1 < len(bars) <= 6
    assert set(bars) | set(bars.values()) <= written
    assert all(f"{name} {text}" in chart.alt for name, text in bars.items())


@pytest.mark.parametrize("name", SHOWN)
def test_a_run_without_rows_has_none(name: str) -> None:
    run = next(run for run in RECORDED if run.experiment == name)
    draw: Callable[..., object] = SHOWN[name]
    assert draw(run, checked_rows(name, [])) is None
