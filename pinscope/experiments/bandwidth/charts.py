"""What a bandwidth run looks like: rates, ratios and times over the copy size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from pinscope.analysis.cells import LineStyle
from pinscope.charts import plot
from pinscope.charts.marks import Chart
from pinscope.charts.plot import Scale, Spot
from pinscope.charts.theme import DASHES, DIRECTION_TITLES, PANEL_PIXELS
from pinscope.experiments.bandwidth.reading import Cell, Copies, Curve, same_sizes
from pinscope.experiments.bandwidth.ways import WAYS
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bandwidth, format_bytes, format_precision, format_value

Panes = dict[str, dict[str, plot.Curve]]
_RATE = Scale("Bandwidth (GB/s)", 1e9, format_bandwidth)
_RATIO = Scale("Pinned ÷ other (×)", 1.0, lambda times: format_value(times, "ratio"))


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


def _name(cell: Cell) -> str:
    return WAYS[cell.memory].title


def _style(cell: Cell) -> LineStyle:
    """Colour and marker of the kind of memory, open where a kernel copies; the dash of the direction."""
    style = WAYS[cell.memory].line
    symbol = style.symbol + ("-open" if cell.copier == "kernel" else "")
    return replace(style, symbol=symbol, dash=DASHES[cell.direction])


def _rate(cell: Cell) -> Spot:
    off = format_precision(cell.one_more_seconds.spread, cell.one_more_seconds.few)
    return Spot(cell.bytes, cell.bytes_per_second, format_bytes(cell.bytes), cell.quartile_rates, f" {off}")


def _panes(curves: Iterable[Curve], name: Callable[[Cell], str], spot: Callable[[Cell], Spot]) -> Panes:
    """A panel for each direction. Kinds that copy equally fast lie on each other: pinned is drawn last, on top."""
    panes: Panes = {}
    last = sorted(curves, key=lambda curve: -list(WAYS).index(curve[0].memory))
    for way, title in DIRECTION_TITLES.items():
        for first, curve in ((curve[0], curve) for curve in last if curve[0].direction == way):
            panes.setdefault(title, {})[name(first)] = plot.Curve(_style(first), [spot(cell) for cell in curve])
    return panes


def _chart(key: str, title: str, caption: str, panes: Panes, scale: Scale, **more: Any) -> Iterator[Chart]:
    """Curves over the size, the legend from the top; none where nothing was measured."""
    if not panes:
        return
    alt = f"{title}; at the largest size"
    chart = plot.curves(key, title, caption, panes, scale, plot.sizes(), alt, pixels=PANEL_PIXELS, **more)
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
