"""What a pressure run looks like: the host's memory over time, what an ordinary process felt, and stalls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from pinscope.charts.chart import Chart
from pinscope.charts.theme import COLOURS, panels
from pinscope.experiments.pressure.arithmetic import GIB, Stage, Stages, median_of, stages
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bandwidth, format_bytes, format_seconds, format_share

Row = Mapping[str, Any]
_MEMORY = (
    ("pinned by this run", "bytes", "pinned", "circle", "solid"),
    ("available", "available_bytes", "pageable", "diamond", "solid"),
    ("left in the control group", "cgroup_headroom_bytes", "pageable", "diamond-open", "dash"),
    ("page cache", "cached_bytes", "cached", "square", "solid"),
)
"""Line, field of a host's row, its colour's meaning, marker and dash."""
_STALLS = (
    ("memory, somebody", "memory_some", "stall", "circle", "solid"),
    ("memory, everybody", "memory_full", "stall", "circle-open", "dash"),
    ("I/O, somebody", "io_some", "cached", "square", "solid"),
    ("I/O, everybody", "io_full", "cached", "square-open", "dash"),
)


def draw(run: ExperimentRun, rows: Sequence[Row]) -> list[Chart]:
    """The charts of a run, also of one that still goes on; only those for which something was measured."""
    found = stages(rows)
    drawn = (_memory(run, rows), _felt(found), _stalls(found))
    return [chart for chart in drawn if chart]


def _memory(run: ExperimentRun, rows: Sequence[Row]) -> Chart | None:
    host = [row for row in rows if row["kind"] == "host"]
    if not host:
        return None
    figure = panels(["Memory of the host"], [320])
    end = host[-1]["elapsed_seconds"]
    budget = max(row["target_bytes"] for row in host)
    for name, amount, dash in (("floor", run.params.get("floor"), "dot"), ("meant to be pinned", budget, "dash")):
        if amount is not None:
            figure.add_trace(
                go.Scatter(
                    x=[0, end], y=[amount / GIB] * 2, mode="lines", name=name,
                    line={"color": COLOURS["reference"], "dash": dash, "width": 1.5},
                    hovertemplate=f"{name}: {format_bytes(amount)}<extra></extra>",
                )
            )  # fmt: skip
    for name, field, colour, symbol, dash in _MEMORY:
        told = [row for row in host if row[field] is not None]
        if told:
            figure.add_trace(
                go.Scatter(
                    x=[row["elapsed_seconds"] for row in told], y=[row[field] / GIB for row in told], name=name,
                    mode="lines+markers", line={"color": COLOURS[colour], "dash": dash, "width": 2},
                    marker={"color": COLOURS[colour], "symbol": symbol, "size": 7},
                    customdata=[f"{_when(row)}: {format_bytes(row[field])}" for row in told],
                    hovertemplate="%{fullData.name}, %{customdata}<extra></extra>",
                )
            )  # fmt: skip
    figure.update_yaxes(title_text="Memory (GiB)", rangemode="tozero")
    figure.update_xaxes(title_text="Time (seconds)", rangemode="tozero")
    return Chart(
        "pressure-memory",
        "What is left for everybody",
        "Read before and after each step. What is pinned is gone from what is available; the page cache counts as "
        "available, until it is pushed out. Grey: where the run stops by itself, and how far it meant to go.",
        figure,
    )


def _when(row: Row) -> str:
    words = {"before": "before pinning", "after": "after giving it back"}
    return words.get(row["phase"], f"{format_bytes(row['bytes'])} pinned")


@dataclass(frozen=True)
class _Part:
    """One panel: what is shown of a stage, how its axis and its figures read, and in which colour's meaning."""

    title: str
    unit: str
    colour: str
    value: Callable[[Stage], float | None]
    text: Callable[[float | None], str]
    scale: float
    """From SI to the axis."""

    def points(self, shown: Sequence[Stage]) -> list[tuple[Stage, float]]:
        """Those of which it is known, in SI units."""
        return [(stage, value) for stage in shown if (value := self.value(stage)) is not None]


def _rate(stage: Stage) -> float | None:
    return 1 / stage.byte_seconds.rounds.median if stage.byte_seconds else None


_PARTS = (
    _Part("Page fault, median", "Microseconds", "pageable", lambda one: median_of(one.fault), format_seconds, 1e6),
    _Part("Page fault, longest", "Milliseconds", "pageable", lambda one: median_of(one.longest), format_seconds, 1e3),
    _Part("Reading its file again", "GB/s", "cached", _rate, format_bandwidth, 1e-9),
    _Part("Its file still in the cache", "Per cent", "cached", lambda one: one.cached_share, format_share, 100.0),
)


def _felt(found: Stages) -> Chart | None:
    """One panel for each thing the ordinary process felt, over pinned memory."""
    if found.before is None or not found.held:
        return None
    parts = [part for part in _PARTS if part.points(found.all)]
    figure = panels([part.title for part in parts], [170] * len(parts))
    for row, part in enumerate(parts, start=1):
        _over_pinned(figure, row, found, part)
        figure.update_yaxes(title_text=part.unit, rangemode="tozero", row=row, col=1)
    figure.update_xaxes(range=_x_range(found))
    figure.update_xaxes(title_text="Pinned (GiB)", row=len(parts), col=1)
    return Chart(
        "pressure-felt",
        "What an ordinary process felt",
        "It touches fresh memory page by page, and reads a file that it read before. Medians over rounds; the longest "
        "fault of a round may also have waited for a processor. Grey: as it was before pinning. Open marker: after "
        "all was given back.",
        figure,
    )


def _over_pinned(figure: go.Figure, row: int, found: Stages, part: _Part) -> None:
    """A line through before and all steps, what was before as a reference, and an open marker for after."""
    line = part.points([stage for stage in found.all if stage.phase != "after"])
    after = part.points([stage for stage in found.all if stage.phase == "after"])
    if line:
        figure.add_trace(
            go.Scatter(
                x=[0, line[-1][0].bytes / GIB], y=[line[0][1] * part.scale] * 2, mode="lines", name="before pinning",
                hoverinfo="skip", legendgroup="before", showlegend=row == 1,
                line={"color": COLOURS["reference"], "dash": "dot", "width": 1.5},
            ),
            row=row, col=1,
        )  # fmt: skip
    colour = COLOURS[part.colour]
    looks = ((line, "with memory pinned", "circle", 8), (after, "given back", "diamond-open", 14))
    for shown, name, symbol, size in looks:
        if shown:
            figure.add_trace(
                go.Scatter(
                    x=[stage.bytes / GIB for stage, _ in shown], y=[value * part.scale for _, value in shown],
                    name=name, legendgroup=name, showlegend=row == 1,
                    mode="lines+markers" if len(shown) > 1 else "markers",
                    line={"color": colour, "width": 2}, marker={"color": colour, "symbol": symbol, "size": size},
                    customdata=[f"{format_bytes(stage.bytes)} pinned: {part.text(value)}" for stage, value in shown],
                    hovertemplate=f"{part.title}<br>%{{customdata}}<extra></extra>",
                ),
                row=row, col=1,
            )  # fmt: skip


def _x_range(found: Stages) -> list[float]:
    """GiB, with room at both ends: markers there would be cut in half."""
    most = (found.most_bytes or GIB) / GIB
    return [-0.04 * most, 1.04 * most]


def _stalls(found: Stages) -> Chart | None:
    shown = [stage for stage in found.all if stage.phase != "after"]
    figure = panels(["Time in which tasks stalled"], [240])
    drawn = False
    for name, field, colour, symbol, dash in _STALLS:
        told = [(stage, share) for stage in shown if (share := stage.stalled[field]) is not None]
        if told:
            drawn = True
            figure.add_trace(
                go.Scatter(
                    x=[stage.bytes / GIB for stage, _ in told], y=[100 * share for _, share in told], name=name,
                    mode="lines+markers", line={"color": COLOURS[colour], "dash": dash, "width": 2},
                    marker={"color": COLOURS[colour], "symbol": symbol, "size": 8},
                    customdata=[f"{format_bytes(stage.bytes)} pinned: {format_share(share)}" for stage, share in told],
                    hovertemplate="%{fullData.name}<br>%{customdata}<extra></extra>",
                )
            )  # fmt: skip
    if not drawn:
        return None
    # An axis of its own making would blow up noise: 1 % is the least that means anything.
    most = max(share for stage in shown for share in stage.stalled.values() if share is not None)
    top = max(105 * most, 1.0)
    figure.update_yaxes(title_text="Time stalled (%)", range=[-0.04 * top, top])
    figure.update_xaxes(title_text="Pinned (GiB)", range=_x_range(found))
    return Chart(
        "pressure-stalls",
        "How long tasks waited for memory or the disk",
        "Shares of each step's time, pinning included, as the kernel counts them for the whole host "
        "(/proc/pressure): at least one task waited, or all of them did.",
        figure,
    )
