"""What a bandwidth run looks like: rates, ratios and times over the copy size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
import plotly.graph_objects as go

from pinscope.analysis.link_model import link_limit
from pinscope.analysis.ways import LineStyle
from pinscope.charts.chart import Chart, alt_text
from pinscope.charts.lines import End, Point, line, name_ends, put, reference
from pinscope.charts.theme import (
    COLOURS,
    DASHES,
    DIRECTION_TITLES,
    DIRECTIONS,
    SYMBOLS,
    panels,
    seconds_axis,
    size_axis,
    words,
)
from pinscope.experiments.bandwidth.arithmetic import (
    PUBLISHED,
    PUBLISHED_BYTES,
    Cell,
    Curves,
    LatencyFit,
    Line,
    by_line,
    cells,
    compared,
    curve_of,
    fit_latency,
    nearest_published,
    speedups,
)
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bandwidth, format_bytes, format_precision, format_seconds, format_value

_RANKS: Mapping[str, int] = {memory: rank for rank, memory in enumerate(SYMBOLS)}
_FITTED = ("pinned", "pageable")
"""Kinds whose latency–bandwidth line is drawn; the table has all of them."""
_MARKS = {
    ("4k", "cold"): "diamond",
    ("thp", "cold"): "square",
    ("4k", "warm"): "diamond-open",
    ("thp", "warm"): "square-open",
}
"""Pages and caches of pageable memory → marker."""


def draw(run: ExperimentRun, observations: Sequence[Mapping[str, Any]]) -> Iterator[Chart]:
    """The charts of a bandwidth run, each drawn when it is taken.

    Args:
        run: tells the lab, the GPU and the limit of its link.
        observations: stored rows of the run, also of one that is still going.

    Yields:
        Only the charts for which something was measured; none for a run without rows.
    """
    curves = by_line(cells(observations))
    every = {line: curve for line, curve in curves.items() if line.devices == 1 and line.device == run.device}
    alone = compared(every)
    engine = {line: curve for line, curve in alone.items() if line.copier == "engine"}
    drawings: tuple[Callable[[], Chart | None], ...] = (
        lambda: _rates(run, engine),
        lambda: _ratios(engine),
        lambda: _issue_times(engine),
        lambda: _copiers(run, alone),
        lambda: _times(run, engine),
        lambda: _states(every),
        lambda: _together(curves),
        lambda: _published(run, engine),
    )
    yield from filter(None, (draw_chart() for draw_chart in drawings))


def _stack(
    curves: Curves, draw_curve: Callable[[Line, Sequence[Cell]], go.Scatter | None]
) -> tuple[go.Figure, list[str]] | None:
    """A figure with one panel per direction that has something to show, and those directions."""
    traces = [(label, made) for label, curve in curves.items() if (made := draw_curve(label, curve)) is not None]
    shown = [way for way in DIRECTIONS if any(label.direction == way for label, _ in traces)]
    if not shown:
        return None
    figure = panels([DIRECTION_TITLES[way] for way in shown])
    # Kinds that copy equally fast lie on each other: pinned is drawn last, on top, and named first.
    traces.sort(key=lambda item: (-_RANKS[item[0].memory], DIRECTIONS.index(item[0].direction)))
    for label, made in traces:
        put(figure, shown.index(label.direction) + 1, made.update(legendrank=_RANKS[label.memory]))
    size_axis(figure, [cell.bytes for curve in curves.values() for cell in curve])
    return figure, shown


def _line(label: Line, name: str, points: Sequence[Point], **more: Any) -> go.Scatter:
    """Points of one curve; those of a kernel have open markers and a thin line."""
    by_kernel = label.copier == "kernel"
    look = LineStyle(label.memory, SYMBOLS[label.memory] + ("-open" if by_kernel else ""), DASHES[label.direction])
    return line(name, look, points, **more).update(line={"width": 1.5 if by_kernel else 2})


def _rate_line(label: Line, curve: Sequence[Cell], name: str) -> go.Scatter:
    rates = np.array([cell.bytes_per_second for cell in curve]) / 1e9
    slow, fast = (np.array(side) / 1e9 for side in zip(*(cell.quartile_rates for cell in curve), strict=True))
    spread = {"type": "data", "array": fast - rates, "arrayminus": rates - slow, "thickness": 1, "width": 3}
    points = [
        (cell.bytes, rate, f"{format_bytes(cell.bytes)}: {format_bandwidth(cell.bytes_per_second)}{_off(cell)}")
        for cell, rate in zip(curve, rates, strict=True)
    ]
    return _line(label, name, points, error_y=spread)


def _off(cell: Cell) -> str:
    """How far the median may be off."""
    few = cell.one_more.few
    return f" {format_precision(None if few else cell.one_more.known_within, few)}"


def _time_line(
    label: Line, curve: Sequence[Cell], name: str, seconds: Callable[[Cell], float], **more: Any
) -> go.Scatter:
    times = [(cell.bytes, seconds(cell)) for cell in curve]
    points = [(size, time, f"{format_bytes(size)}: {format_seconds(time)}") for size, time in times]
    return _line(label, name, points, **more)


def _add_limit(
    run: ExperimentRun,
    figure: go.Figure,
    shown: Sequence[str],
    curves: Curves,
    value: Callable[[int, float, int], float],
) -> bool:
    """Draw what the link can carry into every panel, as ``value`` of a size, of its limit one way, and of the ways."""
    limit = link_limit(run)
    if limit is None:
        return False
    sizes = [cell.bytes for curve in curves.values() for cell in curve]
    ends = [min(sizes), max(sizes)]
    for row, way in enumerate(shown, start=1):
        ways = 2 if way == "bidirectional" else 1
        y = [value(size, limit, ways) for size in ends]
        put(figure, row, reference("link limit", ends, y, f", {format_bandwidth(limit * ways)}"))
    return True


def _rates_over_size(run: ExperimentRun, curves: Curves, name: Callable[[Line], str]) -> tuple[go.Figure | None, str]:
    """Rates of these curves with the link's limit, and what to say of the limit."""
    stacked = _stack(curves, lambda label, curve: _rate_line(label, curve, name(label)))
    if stacked is None:
        return None, ""
    figure, shown = stacked
    figure.update_yaxes(title_text="Bandwidth (GB/s)", rangemode="tozero")
    for row, way in enumerate(shown, start=1):
        name_ends(
            figure,
            row,
            [
                End(
                    name(label),
                    format_bandwidth(curve[-1].bytes_per_second),
                    curve[-1].bytes,
                    curve[-1].bytes_per_second / 1e9,
                )
                for label, curve in curves.items()
                if label.direction == way
            ],
        )
    if _add_limit(run, figure, shown, curves, lambda _, limit, ways: limit * ways / 1e9):
        return figure, " Dotted: the most that the link can carry as payload."
    if run.lab == "host":
        return figure, " The host model has no link, so no limit is drawn."
    return figure, " The link's limit is not known here, so none is drawn."


def _rates(run: ExperimentRun, engine: Curves) -> Chart | None:
    figure, limit = _rates_over_size(run, engine, lambda label: words(label.memory))
    return figure and Chart(
        "bandwidth",
        "Bandwidth over copy size",
        "Medians of one more copy by the copy engine; bars span the middle half of the repeats. "
        "Both directions at once are counted together." + limit,
        figure,
        _alt_rates(engine),
    )


def _alt_rates(curves: Curves) -> str:
    """The rates at the largest size of each line."""
    return alt_text(
        "Bandwidth over copy size; at the largest",
        [
            (
                f"{label.direction}, {words(label.memory)}{'' if label.copier == 'engine' else ', by kernel'}",
                f"{format_bandwidth(curve[-1].bytes_per_second)} at {format_bytes(curve[-1].bytes)}",
            )
            for label, curve in curves.items()
        ],
    )


def _alt_times(what: str, curves: Curves, seconds: Callable[[Cell], float]) -> str:
    """The times of the smallest and of the largest size."""
    return alt_text(
        f"{what} over copy size, smallest and largest",
        [
            (
                f"{label.direction}, {words(label.memory)}",
                f"{format_seconds(seconds(curve[0]))} and {format_seconds(seconds(curve[-1]))}",
            )
            for label, curve in curves.items()
        ],
    )


def _ratios(engine: Curves) -> Chart | None:
    pinned = {label.direction: curve for label, curve in engine.items() if label.memory == "pinned"}

    def draw_curve(label: Line, curve: Sequence[Cell]) -> go.Scatter | None:
        ratios = speedups(pinned.get(label.direction, ()), curve)
        if label.memory == "pinned" or not ratios:
            return None
        points = [(size, ratio, f"{format_bytes(size)}: {format_value(ratio, 'ratio')}") for size, ratio in ratios]
        return _line(label, f"pinned ÷ {words(label.memory)}", points)

    stacked = _stack(engine, draw_curve)
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
        alt_text(
            "Pinned over other memory; at the largest size",
            [
                (f"{label.direction}, pinned over {words(label.memory)}", format_value(ratios[-1][1], "ratio"))
                for label, curve in engine.items()
                if label.memory != "pinned" and (ratios := speedups(pinned.get(label.direction, ()), curve))
            ],
        ),
    )


def _issue_times(engine: Curves) -> Chart | None:
    stacked = _stack(
        engine,
        lambda label, curve: _time_line(label, curve, words(label.memory), lambda cell: cell.issue_seconds.median),
    )
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
        _alt_times("Issue time", engine, lambda cell: cell.issue_seconds.median),
    )


def _copiers(run: ExperimentRun, alone: Curves) -> Chart | None:
    """Copies by a kernel beside those by the copy engine, for kinds that were copied by both or by kernels."""
    kinds = {label.memory for label in alone if label.copier == "kernel"}
    chosen = {label: curve for label, curve in alone.items() if label.memory in kinds}
    figure, limit = _rates_over_size(run, chosen, lambda label: f"{words(label.memory)}, {label.copier}")
    return figure and Chart(
        "copiers",
        "Copy engine and kernel",
        "Filled markers: copied by a copy engine. Open markers: copied by a kernel whose threads reach host memory "
        "through its mapping." + limit,
        figure,
        _alt_rates(chosen),
    )


def _times(run: ExperimentRun, engine: Curves) -> Chart | None:
    """One copy and one more copy over the size, with the fitted line and what the link needs."""
    fits = {label: fit for label, curve in engine.items() if label.memory in _FITTED and (fit := fit_latency(curve))}
    chosen = {label: engine[label] for label in fits}

    def one_more(label: Line, curve: Sequence[Cell]) -> go.Scatter:
        name = f"{words(label.memory)}, {'one more' if _in_a_row(curve) else 'one copy'}"
        return _time_line(label, curve, name, lambda cell: cell.one_more.median, mode="markers")

    stacked = _stack(chosen, one_more)
    if stacked is None:
        return None
    figure, shown = stacked
    for label, curve in chosen.items():
        row, name = shown.index(label.direction) + 1, words(label.memory)
        if _in_a_row(curve):
            one = _time_line(label, curve, f"{name}, one copy", lambda cell: cell.one_copy.median, mode="markers")
            put(figure, row, one.update(marker={"symbol": SYMBOLS[label.memory] + "-open"}))
        put(figure, row, _fitted(label, curve, fits[label]))
    limited = _add_limit(run, figure, shown, chosen, lambda size, limit, _: size / limit)
    seconds_axis(figure, "Device time")
    return Chart(
        "latency-fit",
        "What one copy and one more copy take",
        "Open markers: one copy from an idle stream. Filled: one more, of many in a row. Lines: t = α + bytes ÷ β "
        "through one more copy, with α the time of an empty one and β the rate of an endless one."
        + (" Dotted: the least that the link needs." if limited else ""),
        figure,
        _alt_times("Time of one more copy", chosen, lambda cell: cell.one_more.median),
    )


def _in_a_row(curve: Sequence[Cell]) -> bool:
    """Whether one more copy was measured; runs of 0.1.0 have one copy only."""
    return any(cell.copies > 1 for cell in curve)


def _fitted(label: Line, curve: Sequence[Cell], fit: LatencyFit) -> go.Scatter:
    """The latency–bandwidth line through a curve."""
    sizes = np.geomspace(curve[0].bytes, curve[-1].bytes, 60)
    moved = sizes * (curve[0].moved_bytes / curve[0].bytes)
    text = (
        f"α {format_seconds(fit.alpha_seconds)}, β {format_bandwidth(fit.beta_bytes_per_second)}, "
        f"half of β at {format_bytes(fit.half_size_bytes)}, R² {fit.r_squared:.3f}"
    )
    return go.Scatter(
        x=sizes,
        y=fit.alpha_seconds + moved / fit.beta_bytes_per_second,
        mode="lines",
        name=f"{words(label.memory)}, fit",
        legendrank=len(SYMBOLS) + _RANKS[label.memory],
        line={"color": COLOURS[label.memory], "dash": DASHES[label.direction], "width": 1.5},
        hovertemplate=f"{words(label.memory)}: {text}<extra></extra>",
    )


def _states(every: Curves) -> Chart | None:
    """Pageable copies by pages and caches, and pinned ones whose source the processor just wrote."""
    engine = {label: curve for label, curve in every.items() if label.copier == "engine" and label.cache}
    if len({label.state for label in engine}) < 2:
        return None

    def draw_curve(label: Line, curve: Sequence[Cell]) -> go.Scatter:
        symbol = _MARKS.get((label.backing, label.cache), SYMBOLS[label.memory] + "-open")
        return _rate_line(label, curve, label.state).update(marker={"symbol": symbol})

    stacked = _stack(engine, draw_curve)
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
        alt_text(
            "Bandwidth over copy size; at the largest",
            [
                (f"{label.direction}, {label.state}", format_bandwidth(curve[-1].bytes_per_second))
                for label, curve in engine.items()
            ],
        ),
    )


def _together(curves: Curves) -> Chart | None:
    """Each GPU alone beside all of them at once."""
    at_once = {label: curve[-1] for label, curve in curves.items() if label.devices > 1}
    shown = [way for way in DIRECTIONS if any(label.direction == way for label in at_once)]
    if not shown:
        return None
    figure = panels([DIRECTION_TITLES[way] for way in shown])
    for row, way in enumerate(shown, start=1):
        together = {label.device: cell for label, cell in at_once.items() if label.direction == way}
        size = next(iter(together.values())).bytes
        single = {
            label.device: cell
            for label, curve in curves.items()
            if (label.devices, label.memory, label.copier, label.direction) == (1, "pinned", "engine", way)
            for cell in curve
            if cell.bytes == size
        }
        for name, group, pattern in (("alone", single, ""), ("all at once", together, "/")):
            rates = {f"GPU {device}": group[device].bytes_per_second for device in sorted(group)}
            put(figure, row, _rate_bars(name, rates, COLOURS["pinned"], pattern))
    figure.update_xaxes(type="category")
    return Chart(
        "all-devices",
        "All GPUs at once",
        f"Pinned copies of {format_bytes(next(iter(at_once.values())).bytes)}. Bars that shrink when all copy at once "
        "show a shared uplink.",
        _side_by_side(figure),
        alt_text(
            "Rate of pinned copies, all GPUs at once",
            [
                (f"GPU {label.device}, {label.direction}", format_bandwidth(cell.bytes_per_second))
                for label, cell in at_once.items()
            ],
        ),
    )


def _rate_bars(name: str, rates: Mapping[str, float], colour: str | list[str], pattern: str = "") -> go.Bar:
    return go.Bar(
        x=list(rates),
        y=[rate / 1e9 for rate in rates.values()],
        name=name,
        cliponaxis=False,
        text=[format_bandwidth(rate) for rate in rates.values()],
        textposition="outside",
        marker={"color": colour, "pattern": {"shape": pattern, "fillmode": "replace"}},
        hovertemplate="%{x}, %{fullData.name}: %{text}<extra></extra>",
    )


def _side_by_side(figure: go.Figure) -> go.Figure:
    figure.update_layout(barmode="group", bargap=0.3)
    return figure.update_yaxes(title_text="Bandwidth (GB/s)", rangemode="tozero")


def _published(run: ExperimentRun, engine: Curves) -> Chart | None:
    """The 16 MB table of an RTX 2080 Ti beside this run's nearest size; never beside the host model."""
    if run.lab != "cuda":
        return None
    pairs = {
        (memory, way): cell for memory, way in PUBLISHED if (cell := nearest_published(curve_of(engine, memory, way)))
    }
    if not pairs:
        return None
    labels = {pair: f"{words(pair[0])}<br>{pair[1]}" for pair in pairs}
    mine = escape(run.gpu.name) if run.gpu else "this GPU"  # Plotly reads markup in names
    size = format_bytes(next(iter(pairs.values())).bytes)
    published = {labels[pair]: PUBLISHED[pair] for pair in pairs}
    measured = {labels[pair]: cell.bytes_per_second for pair, cell in pairs.items()}
    figure = panels([""], [300])
    there = f"RTX 2080 Ti, {format_bytes(PUBLISHED_BYTES)} (published)"
    put(figure, 1, _rate_bars(there, published, COLOURS["reference"]))
    put(figure, 1, _rate_bars(f"{mine}, {size} (this run)", measured, [COLOURS[memory] for memory, _ in pairs]))
    figure.update_traces(texttemplate="%{y:.1f}")
    figure.update_xaxes(title_text="Host memory and direction")
    return Chart(
        "published",
        "Beside a published table",
        "Grey: a GeForce RTX 2080 Ti on PCIe Gen3 x16 with 16 MiB copies (Lei Mao, Page-Locked Host Memory for Data "
        "Transfer). Coloured: this run at its nearest size.",
        _side_by_side(figure),
        alt_text(
            "This run, and a published RTX 2080 Ti",
            [
                (
                    f"{words(memory)} {way}",
                    f"{format_bandwidth(cell.bytes_per_second)}, published {format_bandwidth(PUBLISHED[memory, way])}",
                )
                for (memory, way), cell in pairs.items()
            ],
        ),
    )
