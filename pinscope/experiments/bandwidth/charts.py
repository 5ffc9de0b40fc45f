"""What a bandwidth run looks like: rates, ratios and times over the copy size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
import plotly.graph_objects as go

from pinscope.analysis.link_model import link_limit
from pinscope.charts.chart import Chart
from pinscope.charts.theme import (
    COLOURS,
    DASHES,
    DIRECTION_TITLES,
    DIRECTIONS,
    SYMBOLS,
    memory_line,
    panels,
    seconds_axis,
    words,
)
from pinscope.experiments.bandwidth.arithmetic import Cell, Line, by_line, cells, speedups
from pinscope.experiments.bandwidth.chart_panels import Curves, stack
from pinscope.experiments.bandwidth.chart_times import draw_times
from pinscope.experiments.bandwidth.curves import compared, curve_of
from pinscope.experiments.bandwidth.reading import PUBLISHED, PUBLISHED_BYTES, nearest_published
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bandwidth, format_bytes, format_seconds, format_share, format_value


def draw(run: ExperimentRun, observations: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """The charts of a bandwidth run.

    Args:
        run: tells the lab, the GPU and the limit of its link.
        observations: stored rows of the run, also of one that is still going.

    Returns:
        Only the charts for which something was measured; none for a run without rows.
    """
    curves = by_line(cells(observations))
    every = {line: curve for line, curve in curves.items() if line.devices == 1 and line.device == run.device}
    alone = compared(every)
    engine = {line: curve for line, curve in alone.items() if line.copier == "engine"}
    drawn = (
        _rates(run, engine),
        _ratios(engine),
        _issue_times(engine),
        _copiers(run, alone),
        draw_times(run, engine),
        _states(every),
        _together(curves),
        _published(run, engine),
    )
    return [chart for chart in drawn if chart]


def _rate_trace(line: Line, curve: Sequence[Cell], name: str) -> go.Scatter:
    by_kernel = line.copier == "kernel"
    rates = np.array([cell.bytes_per_second for cell in curve]) / 1e9
    slow, fast = (np.array(side) / 1e9 for side in zip(*(cell.quartile_rates for cell in curve), strict=True))
    return go.Scatter(
        **memory_line(line.memory, line.direction, by_kernel=by_kernel),
        x=[cell.bytes for cell in curve],
        y=rates,
        error_y={"type": "data", "array": fast - rates, "arrayminus": rates - slow, "thickness": 1, "width": 3},
        name=name,
        customdata=[
            f"{format_bytes(cell.bytes)}: {format_bandwidth(cell.bytes_per_second)}<br>"
            f"spread ± {format_share(cell.one_more.spread)}, {cell.one_more.count} repeats"
            for cell in curve
        ],
        hovertemplate="%{fullData.name}, %{customdata}<extra></extra>",
    )


def _add_limit(run: ExperimentRun, figure: go.Figure, shown: Sequence[str], curves: Curves) -> bool:
    """Draw what the link can carry into every panel; both directions together carry twice as much."""
    limit = link_limit(run)
    if limit is None:
        return False
    sizes = [cell.bytes for curve in curves.values() for cell in curve]
    for row, way in enumerate(shown, start=1):
        rate = limit * (2 if way == "bidirectional" else 1)
        figure.add_trace(
            go.Scatter(
                x=[min(sizes), max(sizes)], y=[rate / 1e9] * 2, mode="lines", name="link limit",
                legendgroup="link limit", showlegend=row == 1,
                line={"color": COLOURS["reference"], "dash": DASHES["reference"], "width": 2},
                hovertemplate=f"link limit, {format_bandwidth(rate)}<extra></extra>",
            ),
            row=row, col=1,
        )  # fmt: skip
    return True


def _limit_caption(run: ExperimentRun, drawn: bool) -> str:
    if drawn:
        return " Dotted: the most that the link can carry as payload."
    if run.lab == "host":
        return " The host model has no link, so no limit is drawn."
    return " The link's limit is not known here, so none is drawn."


def _rates(run: ExperimentRun, engine: Curves) -> Chart | None:
    stacked = stack(engine, lambda line, curve: _rate_trace(line, curve, words(line.memory)))
    if stacked is None:
        return None
    figure, shown = stacked
    drawn = _add_limit(run, figure, shown, engine)
    figure.update_yaxes(title_text="Bandwidth (GB/s)", rangemode="tozero")
    return Chart(
        "bandwidth",
        "Bandwidth over copy size",
        "Medians of one more copy by the copy engine; bars span the middle half of the repeats. "
        "Both directions at once are counted together." + _limit_caption(run, drawn),
        figure,
    )


def _ratios(engine: Curves) -> Chart | None:
    pinned = {line.direction: curve for line, curve in engine.items() if line.memory == "pinned"}

    def trace(line: Line, curve: Sequence[Cell]) -> go.Scatter | None:
        ratios = speedups(pinned.get(line.direction, ()), curve)
        if line.memory == "pinned" or not ratios:
            return None
        return go.Scatter(
            **memory_line(line.memory, line.direction),
            x=[size for size, _ in ratios],
            y=[ratio for _, ratio in ratios],
            name=f"pinned ÷ {words(line.memory)}",
            customdata=[f"{format_bytes(size)}: {format_value(ratio, 'ratio')}" for size, ratio in ratios],
            hovertemplate="%{fullData.name}, %{customdata}<extra></extra>",
        )

    stacked = stack(engine, trace)
    if stacked is None:
        return None
    figure, _ = stacked
    figure.add_hline(y=1, line={"color": COLOURS["reference"], "dash": DASHES["reference"], "width": 2})
    figure.update_yaxes(title_text="Pinned ÷ other (×)", rangemode="tozero")
    return Chart(
        "speedup",
        "How many times faster pinned memory copies",
        "Ratio of median rates at the same size. Above the dotted line at 1, pinned memory is faster.",
        figure,
    )


def _issue_times(engine: Curves) -> Chart | None:
    def trace(line: Line, curve: Sequence[Cell]) -> go.Scatter:
        return go.Scatter(
            **memory_line(line.memory, line.direction),
            x=[cell.bytes for cell in curve],
            y=[cell.issue_seconds.median for cell in curve],
            name=words(line.memory),
            customdata=[f"{format_bytes(cell.bytes)}: {format_seconds(cell.issue_seconds.median)}" for cell in curve],
            hovertemplate="%{fullData.name}, %{customdata}<extra></extra>",
        )

    stacked = stack(engine, trace)
    if stacked is None:
        return None
    figure, _ = stacked
    seconds_axis(figure, "Issue time")
    return Chart(
        "issue-time",
        "How long the call that starts a copy keeps the CPU",
        "Medians, both axes logarithmic. A call that returns at once stays flat; one that stages or waits grows "
        "with the size.",
        figure,
    )


def _copiers(run: ExperimentRun, alone: Curves) -> Chart | None:
    """Copies by a kernel beside those by the copy engine, for kinds that were copied by both or by kernels."""
    kinds = {line.memory for line in alone if line.copier == "kernel"}
    chosen = {line: curve for line, curve in alone.items() if line.memory in kinds}
    stacked = stack(chosen, lambda line, curve: _rate_trace(line, curve, f"{words(line.memory)}, {line.copier}"))
    if stacked is None:
        return None
    figure, shown = stacked
    drawn = _add_limit(run, figure, shown, chosen)
    figure.update_yaxes(title_text="Bandwidth (GB/s)", rangemode="tozero")
    return Chart(
        "copiers",
        "Copy engine and kernel",
        "Filled markers: copied by a copy engine. Open markers: copied by a kernel whose threads reach host memory "
        "through its mapping." + _limit_caption(run, drawn),
        figure,
    )


_MARKS = {
    ("4k", "cold"): "diamond",
    ("thp", "cold"): "square",
    ("4k", "warm"): "diamond-open",
    ("thp", "warm"): "square-open",
}


def _states(every: Curves) -> Chart | None:
    """Pageable copies by pages and caches, and pinned ones whose source the processor just wrote."""
    engine = {line: curve for line, curve in every.items() if line.copier == "engine" and line.cache}
    if len({line.state for line in engine}) < 2:
        return None

    def trace(line: Line, curve: Sequence[Cell]) -> go.Scatter:
        made = _rate_trace(line, curve, line.state)
        made.marker.symbol = _MARKS.get((line.backing, line.cache), SYMBOLS[line.memory] + "-open")
        return made

    stacked = stack(engine, trace)
    if stacked is None:
        return None
    figure, _ = stacked
    figure.update_yaxes(title_text="Bandwidth (GB/s)", rangemode="tozero")
    return Chart(
        "memory-states",
        "Pages and processor caches",
        "Squares: huge pages, diamonds: small ones. Open markers: the processor wrote the memory right before; filled: "
        "none of it was in its caches. The other charts and the ratios take 4k, cold, where it was measured.",
        figure,
    )


def _together(curves: Curves) -> Chart | None:
    """Each GPU alone beside all of them at once."""
    at_once = {line: curve[-1] for line, curve in curves.items() if line.devices > 1}
    shown = [way for way in DIRECTIONS if any(line.direction == way for line in at_once)]
    if not shown:
        return None
    figure = panels([DIRECTION_TITLES[way] for way in shown])
    for row, way in enumerate(shown, start=1):
        together = {line.device: cell for line, cell in at_once.items() if line.direction == way}
        size = next(iter(together.values())).bytes
        single = {
            line.device: cell
            for line, curve in curves.items()
            if (line.devices, line.memory, line.copier, line.direction) == (1, "pinned", "engine", way)
            for cell in curve
            if cell.bytes == size
        }
        for name, group, pattern in (("alone", single, ""), ("all at once", together, "/")):
            figure.add_trace(_gpu_bars(name, group, pattern, first=row == 1), row=row, col=1)
    figure.update_layout(barmode="group", bargap=0.3)
    figure.update_xaxes(type="category")
    figure.update_yaxes(title_text="Bandwidth (GB/s)", rangemode="tozero")
    return Chart(
        "all-devices",
        "All GPUs at once",
        f"Pinned copies of {format_bytes(next(iter(at_once.values())).bytes)}. Bars that shrink when all copy at once "
        "show a shared uplink.",
        figure,
    )


def _gpu_bars(name: str, group: Mapping[int, Cell], pattern: str, *, first: bool) -> go.Bar:
    devices = sorted(group)
    return go.Bar(
        x=[f"GPU {device}" for device in devices],
        y=[group[device].bytes_per_second / 1e9 for device in devices],
        text=[format_bandwidth(group[device].bytes_per_second) for device in devices],
        textposition="outside",
        cliponaxis=False,
        name=name,
        legendgroup=name,
        showlegend=first,
        marker={"color": COLOURS["pinned"], "pattern": {"shape": pattern, "fillmode": "replace"}},
        hovertemplate="%{x}, %{fullData.name}: %{text}<extra></extra>",
    )


def _published(run: ExperimentRun, engine: Curves) -> Chart | None:
    """The 16 MB table of an RTX 2080 Ti beside this run's nearest size; never beside the host model."""
    if run.lab != "cuda":
        return None
    pairs = {
        (memory, way): (rate, cell)
        for (memory, way), rate in PUBLISHED.items()
        if (cell := nearest_published(curve_of(engine, memory, way)))
    }
    if not pairs:
        return None
    labels = [f"{words(memory)}<br>{way}" for memory, way in pairs]
    mine = escape(run.gpu.name) if run.gpu else "this GPU"  # Plotly reads markup in names
    size = format_bytes(next(iter(pairs.values()))[1].bytes)
    published = [rate for rate, _ in pairs.values()]
    measured = [cell.bytes_per_second for _, cell in pairs.values()]
    figure = panels([""], [300])
    for name, rates, colours in (
        (f"RTX 2080 Ti, {format_bytes(PUBLISHED_BYTES)} (published)", published, COLOURS["reference"]),
        (f"{mine}, {size} (this run)", measured, [COLOURS[memory] for memory, _ in pairs]),
    ):
        figure.add_trace(
            go.Bar(
                x=labels, y=[rate / 1e9 for rate in rates], name=name, marker={"color": colours},
                text=[f"{rate / 1e9:.1f}" for rate in rates], textposition="outside", cliponaxis=False,
                customdata=[format_bandwidth(rate) for rate in rates],
                hovertemplate="%{fullData.name}<br>%{x}: %{customdata}<extra></extra>",
            )
        )  # fmt: skip
    figure.update_layout(barmode="group", bargap=0.3)
    figure.update_yaxes(title_text="Bandwidth (GB/s)", rangemode="tozero")
    figure.update_xaxes(title_text="Host memory and direction")
    return Chart(
        "published",
        "Beside a published table",
        "Grey: a GeForce RTX 2080 Ti on PCIe Gen3 x16 with 16 MiB copies (Lei Mao, Page-Locked Host Memory for Data "
        "Transfer). Coloured: this run at its nearest size.",
        figure,
    )
