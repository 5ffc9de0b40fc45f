"""What a registration run looks like: GPU memory by what it is for, the rate together, and the time to get there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from pinscope.analysis.rows import grouped, median
from pinscope.charts.bars import Part, bars
from pinscope.charts.chart import Chart
from pinscope.charts.lines import Look, line, put
from pinscope.charts.theme import panels
from pinscope.experiments.registration.arithmetic import STRATEGY_TITLES, Trial, trials
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bandwidth, format_bytes, format_seconds

MIB = 2**20
_LOOKS: Mapping[str, Look] = {
    "each_registers": Look("registered", "triangle-down"),
    "one_owner": Look("pinned"),
}


def draw(run: ExperimentRun, rows: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """The charts of a registration run; only those for which something was measured."""
    found = trials(rows)
    drawn = (_tables(run, found), _shares(found), _rates(found), _times(found))
    return [chart for chart in drawn if chart]


def _over_processes(
    title: str,
    axis: str,
    found: Sequence[Trial],
    value: Callable[[Trial], float | None],
    *,
    scale: float,
    text: Callable[[float], str],
) -> go.Figure | None:
    """A line for each strategy over the number of processes; ``None`` where nothing is known."""
    known = [(trial, amount) for trial in found if (amount := value(trial)) is not None]
    if not known:
        return None
    figure = panels([title], [260])
    groups = grouped(known, lambda pair: pair[0].strategy)
    for name in (name for name in STRATEGY_TITLES if name in groups):
        points = [
            (trial.processes, amount / scale, f"{trial.processes} processes: {text(amount)}")
            for trial, amount in groups[name]
        ]
        put(figure, 1, line(STRATEGY_TITLES[name], _LOOKS[name], points))
    counts = sorted({trial.processes for trial, _ in known})
    figure.update_xaxes(title_text="Processes", tickmode="array", tickvals=counts, rangemode="tozero")
    figure.update_yaxes(title_text=axis, rangemode="tozero")
    return figure


def _tables(run: ExperimentRun, found: Sequence[Trial]) -> Chart | None:
    figure = _over_processes(
        "Page tables of all processes",
        "Page tables (MiB)",
        found,
        lambda trial: trial.table_bytes,
        scale=MIB,
        text=format_bytes,
    )
    if figure is None:
        return None
    where = f"memory of GPU {run.device}" if run.lab == "cuda" else "the kernel's page tables of the processes"
    return Chart(
        "registration-tables",
        "Page tables over the number of processes",
        f"What {where} grew by while the processes pinned the same {format_bytes(found[0].bytes)}. A rising line: "
        "every process pays again.",
        figure,
    )


def _name(trial: Trial) -> str:
    if trial.strategy == "one_owner":
        return f"one owner for {trial.processes}"
    return f"{trial.processes} register{'s' if trial.processes == 1 else ''}"


def _part(name: str, colour: str, shown: Sequence[Trial], value: Callable[[Trial], float | None]) -> Part:
    return Part(name, colour, {_name(trial): value(trial) or 0.0 for trial in shown})


def _shares(found: Sequence[Trial]) -> Chart | None:
    """GPU memory by what it is for."""
    shown = [trial for trial in found if trial.context_bytes is not None and trial.table_bytes is not None]
    if not shown:
        return None
    parts = (
        _part("contexts", "reference", shown, lambda trial: trial.context_bytes),
        _part("buffers", "copy", shown, lambda trial: trial.buffer_bytes),
        _part("page tables", "stall", shown, lambda trial: trial.table_bytes),
    )
    return Chart(
        "registration-memory",
        "What GPU memory is taken for",
        "Readings of the whole GPU between the steps: contexts once the processes had started, buffers once they "
        "had taken them, page tables once they had pinned.",
        bars(list(map(_name, shown)), parts, "GPU memory of all processes (MiB)", format_bytes, scale=MIB),
    )


def _rates(found: Sequence[Trial]) -> Chart | None:
    figure = _over_processes(
        "Rate of all together",
        "Rate (GB/s)",
        found,
        lambda trial: median(trial.rate),
        scale=1e9,
        text=format_bandwidth,
    )
    return figure and Chart(
        "registration-rate",
        "How fast all copy at once",
        "Medians over the rounds: all bytes over the time from the first beginning to the last end.",
        figure,
    )


def _times(found: Sequence[Trial]) -> Chart | None:
    shown = [trial for trial in found if trial.pin_seconds]
    if not shown:
        return None
    parts = (
        _part("start-up (all at once)", "reference", shown, lambda trial: median(trial.start_seconds)),
        _part("touching", "compute", shown, lambda trial: trial.touch_seconds),
        _part("pinning (one after the other)", "pinned", shown,
              lambda trial: (median(trial.pin_seconds) or 0.0) * trial.pinners),
    )  # fmt: skip
    return Chart(
        "registration-times",
        "How long it takes",
        "Start-up is the median of the processes. Shared memory is touched by the first process only; the owner's "
        "pinning includes touching.",
        bars(list(map(_name, shown)), parts, "Time until all had pinned (seconds)", format_seconds),
    )
