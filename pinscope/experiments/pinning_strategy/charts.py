"""What a pinning strategy run looks like: how long each strategy took, and how long other processes waited."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Any

import plotly.graph_objects as go

from pinscope.analysis.pinning_strategy import CALLS, IDLE, PHASES, TITLES, StrategyCell, strategy_cells
from pinscope.charts.chart import Chart
from pinscope.charts.theme import COLOURS, panels
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bandwidth, format_bytes, format_seconds

_WAIT_LOOKS = (("pinned", "circle"), ("registered", "triangle-down"), ("intact", "square"), ("pageable", "diamond"))
_ALL_LOOKS = ("stall", "star")
_CONTROL_LOOKS = ("reference", "x")
_DECADES = [10.0**power for power in range(-6, 3, 2)]
_LABEL_LETTERS = 26


def draw(run: ExperimentRun, rows: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """The charts of a run, also of one that still goes on."""
    cells = strategy_cells(rows)
    measured = [cell for name, cell in cells.items() if name != IDLE]
    if not measured:
        return []
    return [_times(measured), _waits(list(cells.values()))]


def _label(cell: StrategyCell) -> str:
    return "<br>".join(wrap(TITLES[cell.strategy], _LABEL_LETTERS))


def _times(cells: Sequence[StrategyCell]) -> Chart:
    figure = panels([""], [80 + 48 * len(cells)])
    labels = [_label(cell) for cell in cells]
    for name, colour, pattern, seconds in (
        ("touch", "pageable", "/", [cell.touch_seconds or 0.0 for cell in cells]),
        ("pin", "pinned", "", [cell.total_seconds.median - (cell.touch_seconds or 0.0) for cell in cells]),
    ):
        figure.add_trace(
            go.Bar(
                y=labels, x=seconds, orientation="h", name=name,
                marker={"color": COLOURS[colour], "pattern": {"shape": pattern, "fillmode": "replace"}},
                customdata=[f"{name} {format_seconds(value)} of {format_seconds(cell.total_seconds.median)}, "
                            f"{format_bandwidth(cell.bytes_per_second)}"
                            for cell, value in zip(cells, seconds, strict=True)],
                hovertemplate="%{customdata}<extra></extra>",
            )
        )  # fmt: skip
    figure.update_layout(barmode="stack")
    figure.update_yaxes(autorange="reversed", title_text="")
    figure.update_xaxes(title_text="Time (seconds)", rangemode="tozero")
    return Chart(
        "strategy-times",
        f"How long {format_bytes(cells[0].bytes)} take to pin",
        "Medians. Touching is faulting and zeroing pages; where it is not apart, the driver does it while it pins, or "
        "threads do it at the same time.",
        figure,
    )


def _waits(cells: Sequence[StrategyCell]) -> Chart:
    figure = panels([""], [80 + 48 * len(cells)])
    pinning, giving_back = PHASES.values()
    for call, look in zip(CALLS.values(), _WAIT_LOOKS, strict=True):
        figure.add_trace(_marks(cells, call, look, [cell.wait(pinning, call) for cell in cells]))
    longest = [cell.wait(giving_back) for cell in cells]
    figure.add_trace(_marks(cells, f"any, memory {giving_back}", _ALL_LOOKS, longest))
    figure.add_trace(_marks(cells, "no driver calls", _CONTROL_LOOKS, [cell.longest_control for cell in cells]))
    figure.update_yaxes(autorange="reversed", title_text="", type="category")
    figure.update_xaxes(
        type="log", tickmode="array", tickvals=_DECADES, title_text="Longest wait<br>(seconds, log scale)",
        ticktext=[format_seconds(decade).replace(".00", "").replace("10.0", "10").replace("100.0", "100")
                  for decade in _DECADES],
    )  # fmt: skip
    return Chart(
        "neighbour-waits",
        "How long other processes waited meanwhile",
        "The longest single call of each kind in other processes while memory was pinned, and of all kinds while it "
        "was given back. No driver calls: how late a process woke that makes none. Idle: the same with nothing going "
        "on.",
        figure,
    )


def _marks(
    cells: Sequence[StrategyCell], name: str, look: tuple[str, str], seconds: Sequence[float | None]
) -> go.Scatter:
    """One mark for each strategy that tells."""
    known = [(_label(cell), value) for cell, value in zip(cells, seconds, strict=True) if value is not None]
    return go.Scatter(
        y=[label for label, _ in known], x=[value for _, value in known], mode="markers", name=name,
        showlegend=bool(known), marker={"color": COLOURS[look[0]], "symbol": look[1], "size": 10},
        customdata=[format_seconds(value) for _, value in known],
        hovertemplate="%{y}<br>%{fullData.name}: %{customdata}<extra></extra>",
    )  # fmt: skip
