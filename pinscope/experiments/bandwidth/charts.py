"""What a bandwidth run looks like: rates, ratios and times over the copy size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pinscope.analysis.cells import LineStyle
from pinscope.analysis.read_rows import Row
from pinscope.charts import plot
from pinscope.charts.marks import Chart
from pinscope.charts.plot import Bar, Scale, Spot, TimePart
from pinscope.charts.theme import DASHES, DIRECTION_TITLES, PANEL_PIXELS
from pinscope.experiments.bandwidth.reading import Cell, Copies, Curve, LatencyFit, fit_latency, same_sizes
from pinscope.experiments.bandwidth.ways import WAYS
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bandwidth, format_bytes, format_precision, format_seconds, format_value

Panes = dict[str, dict[str, plot.Curve]]
_RATE = Scale("Bandwidth (GB/s)", 1e9, format_bandwidth)
_RATIO = Scale("Pinned ÷ other (×)", 1.0, lambda times: format_value(times, "ratio"))
_FITTED = ("pinned", "pageable")
"""Kinds whose latency–bandwidth line is drawn; the table has all of them."""
_STATE_SYMBOLS = {"4k, cold": "diamond", "thp, cold": "square", "4k, warm": "diamond-open", "thp, warm": "square-open"}


def draw(run: ExperimentRun, copies: Copies) -> Iterator[Chart]:
    """The charts for which something was measured, each drawn when it is taken."""
    del run
    engine = [curve for curve in copies.compared.values() if curve[0].copier == "engine"]
    kinds = {memory for memory, _, copier in copies.compared if copier == "kernel"}
    limit, said = _limit(copies)
    yield from _chart(
        "bandwidth",
        "Bandwidth over copy size",
        "Medians of one more copy by the copy engine; bars span the middle half of the repeats. "
        f"Both directions at once are counted together. {said}",
        _panes(engine, _name, _rate),
        _RATE,
        limit=limit,
        ends_named=True,
    )
    yield from _ratios(copies, engine)
    yield from _chart(
        "issue-time",
        "How long the call that starts a copy keeps the CPU",
        "Medians, both axes logarithmic. A call that returns at once stays flat; one that stages or waits grows "
        "with the size.",
        _panes(engine, _name, lambda cell: Spot(cell.bytes, cell.issue_seconds.median, format_bytes(cell.bytes))),
        plot.seconds("Issue time"),
    )
    yield from _chart(
        "copiers",
        "Copy engine and kernel",
        "Filled markers: copied by a copy engine. Open markers: copied by a kernel whose threads reach host memory "
        f"through its mapping. {said}",
        _panes(
            [curve for (memory, *_), curve in copies.compared.items() if memory in kinds],
            lambda cell: f"{_name(cell)}, {cell.copier}",
            _rate,
        ),
        _RATE,
        limit=limit,
        ends_named=True,
    )
    yield from _fits(copies, engine)
    states = [curve for curve in copies.alone if curve[0].copier == "engine" and curve[0].cache]
    if len({curve[0].state for curve in states}) > 1:
        yield from _chart(
            "memory-states",
            "Pages and processor caches",
            "Squares: huge pages, diamonds: small ones. Open markers: the processor wrote the memory right before; "
            "filled: none of it was in its caches. The other charts and the ratios take 4k, cold, where measured.",
            _panes(states, lambda cell: cell.state, _rate, _state_style),
            _RATE,
        )


def draw_small(run: ExperimentRun, rows: Sequence[Row]) -> Chart | None:
    """Pinned beside pageable copies, both ways, in a few bars; ``None`` where they cannot be compared."""
    gains = [gain for way, gain in Copies(run, rows).gains.items() if way in ("h2d", "d2h")]
    if not gains:
        return None
    cells = [cell for gain in gains for cell in (gain.pinned, gain.pageable)]
    title = f"Copies of {format_bytes(cells[0].bytes)}"
    drawn = [Bar(f"{cell.memory} {cell.direction}", cell.bytes_per_second, TimePart("", cell.memory)) for cell in cells]
    return plot.bars("small", title, "", {"": drawn}, _RATE, title)


def _name(cell: Cell) -> str:
    return WAYS[cell.memory].title


def _style(cell: Cell) -> LineStyle:
    """Colour and marker of the kind of memory, open where a kernel copies; the dash of the direction."""
    style = WAYS[cell.memory].line
    symbol = style.symbol + ("-open" if cell.copier == "kernel" else "")
    return replace(style, symbol=symbol, dash=DASHES[cell.direction])


def _state_style(cell: Cell) -> LineStyle:
    usual = _style(cell)
    return replace(usual, symbol=_STATE_SYMBOLS.get(f"{cell.backing}, {cell.cache}", f"{usual.symbol}-open"))


def _rate(cell: Cell) -> Spot:
    few = cell.one_more_seconds.few
    off = format_precision(None if few else cell.one_more_seconds.known_within, few)
    return Spot(cell.bytes, cell.bytes_per_second, format_bytes(cell.bytes), cell.quartile_rates, f" {off}")


def _panes(
    curves: Iterable[Curve],
    name: Callable[[Cell], str],
    spot: Callable[[Cell], Spot],
    style: Callable[[Cell], LineStyle] = _style,
) -> Panes:
    """A panel for each direction. Kinds that copy equally fast lie on each other: pinned is drawn last, on top."""
    panes: Panes = {}
    last = sorted(curves, key=lambda curve: -list(WAYS).index(curve[0].memory))
    for way, title in DIRECTION_TITLES.items():
        for first, curve in ((curve[0], curve) for curve in last if curve[0].direction == way):
            panes.setdefault(title, {})[name(first)] = plot.Curve(style(first), [spot(cell) for cell in curve])
    return panes


def _chart(key: str, title: str, caption: str, panes: Panes, scale: Scale, **more: Any) -> Iterator[Chart]:
    """Curves over the size, the legend from the top; none where nothing was measured."""
    if not panes:
        return
    ends = [
        (f"{pane_title}, {name}", scale.text(curve.spots[-1].y))
        for pane_title, pane in panes.items()
        for name, curve in pane.items()
        if not curve.rule
    ]
    alt = f"{title}; at the largest size"
    chart = plot.curves(key, title, caption, panes, scale, plot.sizes(), alt, pixels=PANEL_PIXELS, ends=ends, **more)
    chart.figure.update_layout(legend_traceorder="reversed+grouped")
    yield chart


def _limit(copies: Copies) -> tuple[dict[str, float] | None, str]:
    """What the link can carry in each panel, and what to say of it."""
    if copies.run.lab == "host":
        return None, "The host model has no link, so no limit is drawn."
    if copies.limit is None:
        return None, "The link's limit is not known here, so none is drawn."
    limits = {title: copies.limit * (2 if way == "bidirectional" else 1) for way, title in DIRECTION_TITLES.items()}
    return limits, "Dotted: the most that the link can carry as payload."


def _ratios(copies: Copies, engine: Sequence[Curve]) -> Iterator[Chart]:
    ratios = {
        slow: fast.bytes_per_second / slow.bytes_per_second
        for curve in engine
        if curve[0].memory != "pinned"
        for fast, slow in same_sizes(copies.engine("pinned", curve[0].direction), curve)
    }
    curves = [compared for curve in engine if (compared := [cell for cell in curve if cell in ratios])]
    panes = _panes(
        curves,
        lambda cell: f"pinned ÷ {_name(cell)}",
        lambda cell: Spot(cell.bytes, ratios[cell], format_bytes(cell.bytes)),
    )
    for pane in panes.values():
        pane["as fast"] = plot.level(1.0)
    yield from _chart(
        "speedup",
        "How many times faster pinned memory copies",
        "Ratio of median rates at the same size. Above the dotted line at 1, pinned memory is faster.",
        panes,
        _RATIO,
    )


def _fits(copies: Copies, engine: Sequence[Curve]) -> Iterator[Chart]:
    """One copy and one more copy over the size, with the fitted line and what the link needs."""
    fits = {curve[0]: fit for curve in engine if curve[0].memory in _FITTED and (fit := fit_latency(curve))}
    curves = [curve for curve in engine if curve[0] in fits]
    panes: Panes = {}
    for way, title in DIRECTION_TITLES.items():
        for curve in (curve for curve in curves if curve[0].direction == way):
            name, style, pane = _name(curve[0]), _style(curve[0]), panes.setdefault(title, {})
            pane[f"{name}, fit"] = _fitted(curve, fits[curve[0]])
            for what, mark in (("one_copy", "-open"), ("one_more", "")):
                times = [(cell, getattr(cell, f"{what}_seconds").median) for cell in curve]
                spots = [Spot(cell.bytes, seconds, format_bytes(cell.bytes)) for cell, seconds in times]
                marked = replace(style, symbol=style.symbol + mark)
                pane[f"{name}, {what.replace('_', ' ')}"] = plot.Curve(marked, spots, mode="markers")
    if panes and (limit := copies.limit):
        ends = [curve[place].bytes for curve in curves for place in (0, -1)]
        across = [Spot(float(size), size / limit, format_bandwidth(limit)) for size in (min(ends), max(ends))]
        for pane in panes.values():
            pane["link limit"] = plot.Curve(LineStyle("reference", dash=DASHES["reference"]), across, rule=True)
    yield from _chart(
        "latency-fit",
        "What one copy and one more copy take",
        "Open markers: one copy from an idle stream. Filled: one more, of many in a row. Lines: t = α + bytes ÷ β "
        "through one more copy, with α the time of an empty one and β the rate of an endless one."
        + (" Dotted: the least that the link needs." if copies.limit else ""),
        panes,
        plot.seconds("Device time"),
    )


def _fitted(curve: Curve, fit: LatencyFit) -> plot.Curve:
    """The latency–bandwidth line through a curve."""
    sizes = np.geomspace(curve[0].bytes, curve[-1].bytes, 60)
    moved = sizes * (curve[0].moved_bytes / curve[0].bytes)
    times = fit.alpha_seconds + moved / fit.beta_bytes_per_second
    text = (
        f"α {format_seconds(fit.alpha_seconds)}, β {format_bandwidth(fit.beta_bytes_per_second)}, "
        f"half of β at {format_bytes(fit.half_size_bytes)}, R² {fit.r_squared:.3f}"
    )
    spots = [Spot(float(size), float(time), text) for size, time in zip(sizes, times, strict=True)]
    return plot.Curve(_style(curve[0]), spots, mode="lines")
