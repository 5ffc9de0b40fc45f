"""What a registration run looks like: GPU memory by what it is for, the rate together, and the time to get there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from pinscope.charts.chart import Chart
from pinscope.charts.theme import COLOURS, panels
from pinscope.experiments.registration.arithmetic import STRATEGY_TITLES, Trial, trials
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bandwidth, format_bytes, format_seconds

MIB = 2**20
STRATEGY_COLOURS: Mapping[str, str] = {"each_registers": COLOURS["registered"], "one_owner": COLOURS["pinned"]}
STRATEGY_SYMBOLS: Mapping[str, str] = {"each_registers": "triangle-down", "one_owner": "circle"}
_ROW_PIXELS = 44


def draw(run: ExperimentRun, rows: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """The charts of a registration run; only those for which something was measured."""
    found = trials(rows)
    drawn = (_tables(run, found), _shares(found), _rates(found), _times(found))
    return [chart for chart in drawn if chart]


def _by_strategy(found: Sequence[Trial]) -> dict[str, list[Trial]]:
    groups = {name: [trial for trial in found if trial.strategy == name] for name in STRATEGY_TITLES}
    return {name: group for name, group in groups.items() if group}


def _line(name: str, group: Sequence[Trial], values: Sequence[float], texts: Sequence[str]) -> go.Scatter:
    title = STRATEGY_TITLES[name]
    return go.Scatter(
        x=[trial.processes for trial in group], y=values, name=title, mode="lines+markers",
        line={"color": STRATEGY_COLOURS[name], "width": 2},
        marker={"color": STRATEGY_COLOURS[name], "symbol": STRATEGY_SYMBOLS[name], "size": 9}, customdata=texts,
        hovertemplate=f"{title}, %{{x}} processes: %{{customdata}}<extra></extra>",
    )  # fmt: skip


def _process_axis(figure: go.Figure, found: Sequence[Trial]) -> None:
    counts = sorted({trial.processes for trial in found})
    figure.update_xaxes(title_text="Processes", tickmode="array", tickvals=counts, rangemode="tozero")


def _tables(run: ExperimentRun, found: Sequence[Trial]) -> Chart | None:
    told = [trial for trial in found if trial.table_bytes is not None]
    if not told:
        return None
    figure = panels(["Page tables of all processes"], [260])
    for name, group in _by_strategy(told).items():
        sizes = [trial.table_bytes or 0 for trial in group]
        figure.add_trace(
            _line(name, group, [size / MIB for size in sizes], [format_bytes(size) for size in sizes]), row=1, col=1
        )
    _process_axis(figure, told)
    figure.update_yaxes(title_text="Page tables (MiB)", rangemode="tozero")
    where = f"memory of GPU {run.device}" if run.lab == "cuda" else "the kernel's page tables of the processes"
    return Chart(
        "registration-tables",
        "Page tables over the number of processes",
        f"What {where} grew by while the processes pinned the same {format_bytes(told[0].bytes)}. A rising line: "
        "everybody pays again.",
        figure,
    )


def _names(found: Sequence[Trial]) -> list[str]:
    short = {"each_registers": "each registers", "one_owner": "one owner"}
    return [f"{trial.processes} × {short[trial.strategy]}" for trial in found]


def _shares(found: Sequence[Trial]) -> Chart | None:
    """GPU memory by what it is for."""
    told = [trial for trial in found if trial.context_bytes is not None and trial.table_bytes is not None]
    if not told:
        return None
    figure = panels(["GPU memory"], [_ROW_PIXELS * len(told)])
    names = _names(told)
    parts = (
        ("contexts", COLOURS["reference"], [trial.context_bytes or 0 for trial in told]),
        ("buffers", COLOURS["copy"], [trial.buffer_bytes or 0 for trial in told]),
        ("page tables", COLOURS["stall"], [trial.table_bytes or 0 for trial in told]),
    )
    for name, colour, sizes in parts:
        figure.add_trace(
            go.Bar(
                orientation="h", y=names, x=[size / MIB for size in sizes], name=name, marker={"color": colour},
                customdata=[format_bytes(size) for size in sizes],
                hovertemplate=f"%{{y}}<br>{name}: %{{customdata}}<extra></extra>",
            ),
            row=1, col=1,
        )  # fmt: skip
    _bars(figure, names, "GPU memory of all processes (MiB)")
    return Chart(
        "registration-memory",
        "What GPU memory is taken for",
        "Readings of the whole GPU between the steps: contexts once the processes had started, buffers once they "
        "had taken them, page tables once they had pinned.",
        figure,
    )


def _bars(figure: go.Figure, names: Sequence[str], title: str) -> None:
    figure.update_layout(barmode="stack")
    figure.update_yaxes(type="category", categoryorder="array", categoryarray=names[::-1], showgrid=False)
    figure.update_xaxes(title_text=title, rangemode="tozero")


def _rates(found: Sequence[Trial]) -> Chart | None:
    told = [trial for trial in found if trial.rate]
    if not told:
        return None
    figure = panels(["Rate of all together"], [260])
    for name, group in _by_strategy(told).items():
        rates = [trial.rate.median if trial.rate else 0.0 for trial in group]
        figure.add_trace(
            _line(name, group, [rate / 1e9 for rate in rates], [format_bandwidth(rate) for rate in rates]), row=1, col=1
        )
    _process_axis(figure, told)
    figure.update_yaxes(title_text="Rate (GB/s)", rangemode="tozero")
    return Chart(
        "registration-rate",
        "How fast all copy at once",
        "Medians over the rounds: all bytes over the time from the first beginning to the last end.",
        figure,
    )


def _times(found: Sequence[Trial]) -> Chart | None:
    told = [trial for trial in found if trial.pin_seconds]
    if not told:
        return None
    figure = panels(["Time until all had pinned"], [_ROW_PIXELS * len(told)])
    names = _names(told)
    parts = (
        ("start-up (all at once)", COLOURS["reference"], [_start(trial) for trial in told]),
        ("touching", COLOURS["compute"], [trial.touch_seconds or 0.0 for trial in told]),
        ("pinning (one after the other)", COLOURS["pinned"], [_pinning(trial) for trial in told]),
    )
    for name, colour, seconds in parts:
        figure.add_trace(
            go.Bar(
                orientation="h", y=names, x=seconds, name=name, marker={"color": colour},
                customdata=[format_seconds(value) for value in seconds],
                hovertemplate=f"%{{y}}<br>{name}: %{{customdata}}<extra></extra>",
            ),
            row=1, col=1,
        )  # fmt: skip
    _bars(figure, names, "Seconds")
    return Chart(
        "registration-times",
        "How long it takes",
        "Start-up is the median of the processes. Shared memory is touched by the first process only; the owner's "
        "pinning includes touching.",
        figure,
    )


def _start(trial: Trial) -> float:
    return trial.start_seconds.median if trial.start_seconds else 0.0


def _pinning(trial: Trial) -> float:
    return trial.pin_seconds.median * trial.pinners if trial.pin_seconds else 0.0
