"""What a kept live view looks like: pinned memory, its holders, what it costs each GPU, and what goes over PCIe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import plotly.graph_objects as go

from pinscope.analysis.read_rows import Row
from pinscope.charts.chart import Chart, alt_text
from pinscope.charts.lines import End, name_ends, put, reference
from pinscope.charts.theme import COLOURS, DASHES, panels
from pinscope.live.timeline.reading import Watched, points, sampled, summed
from pinscope.records.figure import figures
from pinscope.records.run import Run
from pinscope.records.snapshot import DeviceFigures, HostTotals
from pinscope.text import one_line
from pinscope.units import format_bandwidth, format_bytes, format_seconds

GIB, MIB = 2**30, 2**20
MOST_POINTS = 1500
"""Of one line: more than a screen has columns."""
ROOM = 1.05
"""Top of an axis over the largest value."""
LIMIT_IN_SIGHT = 4.0
"""A limit that is more than so many times the largest value would press all lines to the ground: it is named only."""

_UNITS = ((3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))
_LINES = (
    ("pinned", "solid"),
    ("pageable", "dash"),
    ("write_combined", "dashdot"),
    ("mapped", "7px,2px"),
    ("registered", "dot"),
    ("managed", "7px,2px,2px,2px"),
)
"""Colour and dash of each holder's line: apart for every kind of vision."""


@dataclass(frozen=True)
class _Clock:
    """The time axis: its length and unit, and what time of day it was."""

    begun: datetime
    end_seconds: float
    gap_seconds: float
    scale: float
    unit: str

    @property
    def end(self) -> float:
        """In the axis' unit."""
        return self.end_seconds / self.scale

    def words(self, seconds: float) -> str:
        return f"{format_seconds(seconds)}, {self.begun + timedelta(seconds=seconds):%H:%M:%S} UTC"


@dataclass(frozen=True)
class _Look:
    """How one line is drawn, and how its values read."""

    name: str
    colour: str
    dash: str = "solid"
    scale: float = GIB
    text: Callable[[float | None], str] = format_bytes
    shape: str = "linear"


def draw(run: Run, seen: Watched) -> list[Chart]:
    """The charts of a timeline, also of one that still goes on; only those for which something was seen."""
    del run
    if not seen.host:
        return []
    clock = _clock(seen)
    drawn = (_pinned(seen, clock), _holders(seen, clock), _tables(seen, clock), _link(seen, clock))
    return [chart for chart in drawn if chart]


def _clock(seen: Watched) -> _Clock:
    first = seen.host[0]
    begun = first["taken_at"] - timedelta(seconds=first["elapsed_seconds"])
    end = max(seen.end_seconds, seen.interval_seconds)
    scale, unit = next((pair for pair in _UNITS if end >= 3 * pair[0]), _UNITS[-1])
    return _Clock(begun, end, seen.gap_seconds, scale, unit)


def _add(figure: go.Figure, row: int, clock: _Clock, series: Sequence[tuple[float, float]], look: _Look) -> None:
    """One line, with a hole in it wherever samples are missing."""
    drawn: list[tuple[float, float | None]] = []
    pieces = stretches(series, clock.gap_seconds)
    for piece in pieces:
        drawn += [(piece[0][0], None)] if drawn else []
        drawn += thinned(piece, max(MOST_POINTS // len(pieces), 8))
    trace = go.Scatter(
        x=[at / clock.scale for at, _ in drawn],
        y=[None if value is None else value / look.scale for _, value in drawn],
        name=look.name,
        mode="lines" if len(drawn) > 1 else "markers",
        connectgaps=False,
        line={"color": COLOURS[look.colour], "dash": look.dash, "width": 2, "shape": look.shape},
        customdata=["" if value is None else f"{look.text(value)}<br>{clock.words(at)}" for at, value in drawn],
        hovertemplate=f"{_plain(look.name)}: %{{customdata}}<extra></extra>",
    )
    put(figure, row, trace)


def _plain(name: str) -> str:
    """A process may call itself what it likes: Plotly must read no markup and no template in it."""
    return one_line(name).replace("<", "‹").replace(">", "›").replace("%{", "% {")


def _finish(figure: go.Figure, clock: _Clock, rows: int) -> None:
    figure.update_xaxes(range=[0, clock.end], unifiedhovertitle_text=f"%{{x:.1f}} {clock.unit}")
    figure.update_xaxes(title_text=f"Time ({clock.unit})", row=rows, col=1)


def _since(clock: _Clock) -> str:
    return f"Time 0 is {clock.begun:%Y-%m-%d %H:%M:%S} UTC."


def _limit(figure: go.Figure, row: int, clock: _Clock, at: float, name: str) -> None:
    """A dotted line; equal ones of several panels are named once."""
    put(figure, row, reference(name, [0, clock.end], [at, at], ""))


# Pinned memory of the host

_LABELS = {figure.field: figure.label for record in (HostTotals, DeviceFigures) for figure in figures(record)}
_PINNED = (
    ("pinned_bytes", _Look(_LABELS["pinned_bytes"], "pinned")),
    ("explained_bytes", _Look(_LABELS["explained_bytes"], "pinned", dash="dash")),
    ("other_pinned_bytes", _Look(_LABELS["other_pinned_bytes"], "registered", dash="dashdot")),
    ("driver_memory_bytes", _Look(_LABELS["driver_memory_bytes"], "driver", dash="7px,2px")),
    ("mlocked_bytes", _Look(_LABELS["mlocked_bytes"], "locked", dash="dot")),
)
_LEFT = (
    ("available_bytes", _Look(_LABELS["available_bytes"], "pageable")),
    ("cgroup_headroom_bytes", _Look(_LABELS["cgroup_headroom_bytes"], "pageable", dash="dash")),
)


def _pinned(seen: Watched, clock: _Clock) -> Chart:
    """Totals of the host above, what is left of memory below."""
    figure = panels(["Pinned and locked, whole host", "Memory left"], [280, 170])
    most = 0.0
    for row, lines in ((1, _PINNED), (2, _LEFT)):
        for name, look in lines:
            series = points(seen.host, name)
            if series:
                _add(figure, row, clock, series, look)
                most = max(most, *(value for _, value in series)) if row == 1 else most
    total = seen.host[-1]["total_bytes"]
    in_sight = most * LIMIT_IN_SIGHT >= total
    name = f"host memory {format_bytes(total)}" + ("" if in_sight else " (off scale)")
    _limit(figure, 1, clock, total / GIB, name)
    if not in_sight:
        top = most / GIB * ROOM or 1.0
        figure.update_yaxes(range=[-0.02 * top, top], row=1, col=1)
    figure.update_yaxes(title_text="Memory (GiB)", rangemode="tozero")
    _finish(figure, clock, 2)
    _name_last(figure, 1, seen.host, clock, _PINNED)
    return Chart(
        "timeline-pinned",
        "Pinned memory over time",
        "Pinned: pages that the kernel counts as pinned for device access, by any program. Explained: cudaHostAlloc "
        "memory of the holders, their contexts' own, and what the kernel accounts to them. Driver memory: what the "
        "kernel's accounts leave over. Locked memory is not pinned for CUDA. "
        f"{_since(clock)}",
        figure,
        alt_text(
            f"Memory of the host over {clock.words(clock.end_seconds)}; first, most and last",
            [
                (look.name, _course(points(seen.host, name), look))
                for name, look in (*_PINNED, *_LEFT)
                if points(seen.host, name)
            ],
        ),
    )


def _course(series: Sequence[tuple[float, float]], look: _Look) -> str:
    """First, most and last."""
    values = [value for _, value in series]
    return ", ".join(look.text(value) for value in (values[0], max(values), values[-1]))


def _name_last(
    figure: go.Figure, row: int, rows: Sequence[Row], clock: _Clock, lines: Sequence[tuple[str, _Look]]
) -> None:
    """What each line came to, at its end."""
    ends = [(series[-1], look) for name, look in lines if (series := points(rows, name)) and series[-1][1]]
    name_ends(
        figure,
        row,
        [End(look.name, look.text(value), at / clock.scale, value / look.scale) for (at, value), look in ends],
    )


# Holders


def _holders(seen: Watched, clock: _Clock) -> Chart | None:
    """Those with the most at their peak, and the sum of all others."""
    known = [life for life in seen.lives if life.peak_bytes]
    if not known:
        return None
    figure = panels(["Held by each process"], [320])
    times = [row["elapsed_seconds"] for row in seen.host]
    for number, life in enumerate(known[: len(_LINES)]):
        series = sampled(life.amounts, times, life.last_seconds)
        look = _Look(f"{_plain(life.name or 'process')} (pid {life.pid})", *_LINES[number], shape="hv")
        _add(figure, 1, clock, series, look)
    others = known[len(_LINES) :]
    if others:
        look = _Look(f"{len(others)} others together", "reference", shape="hv")
        _add(figure, 1, clock, sampled(summed(life.amounts for life in others), times, seen.end_seconds), look)
    figure.update_yaxes(title_text="Held (GiB)", rangemode="tozero")
    _finish(figure, clock, 1)
    return Chart(
        "timeline-holders",
        "Who held it",
        "cudaHostAlloc and driver memory of each process, and the largest of registered (with the probe), locked and "
        f"otherwise pinned memory. A line ends where its process ended or gave all back. {_since(clock)}",
        figure,
        alt_text(
            "Held at most by each process",
            [(f"{_plain(life.name or 'process')} (pid {life.pid})", format_bytes(life.peak_bytes)) for life in known],
        ),
    )


# GPUs

_ON_GPU = (
    ("unattributed_bytes", _Look(_LABELS["unattributed_bytes"], "device", scale=MIB)),
    ("page_table_bytes", _Look(_LABELS["page_table_bytes"], "page_table", dash="dash", scale=MIB)),
)
_OVER_PCIE = (
    ("rx_bytes_per_second", _Look(_LABELS["rx_bytes_per_second"], "copy", DASHES["h2d"], 1e9, format_bandwidth)),
    ("tx_bytes_per_second", _Look(_LABELS["tx_bytes_per_second"], "stall", DASHES["d2h"], 1e9, format_bandwidth)),
)


def _each_gpu(
    seen: Watched, clock: _Clock, lines: Sequence[tuple[str, _Look]]
) -> tuple[go.Figure, list[tuple[int, tuple[Row, ...]]]]:
    """A panel for each GPU of which any of this is known."""
    known = [(index, rows) for index, rows in seen.devices.items() if any(points(rows, name) for name, _ in lines)]
    figure = panels([f"GPU {index}" for index, _ in known], [200] * len(known))
    for row, (_, rows) in enumerate(known, start=1):
        for name, look in lines:
            if series := points(rows, name):
                _add(figure, row, clock, series, look)
    return figure, known


def _alt_each(known: Sequence[tuple[int, tuple[Row, ...]]], lines: Sequence[tuple[str, _Look]]) -> str:
    return alt_text(
        "Over time; first, most and last",
        [
            (f"GPU {index}, {look.name}", _course(series, look))
            for index, rows in known
            for name, look in lines
            if (series := points(rows, name))
        ],
    )


def _tables(seen: Watched, clock: _Clock) -> Chart | None:
    if not any(points(rows, name) for rows in seen.devices.values() for name, _ in _ON_GPU):
        return None
    figure, known = _each_gpu(seen, clock, _ON_GPU)
    figure.update_yaxes(title_text="GPU memory (MiB)", rangemode="tozero")
    _finish(figure, clock, len(known))
    return Chart(
        "timeline-page-tables",
        "GPU memory of no process",
        "What is used on each GPU and charged to no process, beside the page tables that the holders' memory implies: "
        "8 bytes a page. What lies above them is the driver's own, managed memory, or page tables of registered "
        f"memory. {_since(clock)}",
        figure,
        _alt_each(known, _ON_GPU),
    )


def _link(seen: Watched, clock: _Clock) -> Chart | None:
    if not any(points(rows, name) for rows in seen.devices.values() for name, _ in _OVER_PCIE):
        return None
    figure, known = _each_gpu(seen, clock, _OVER_PCIE)
    for row, (_, rows) in enumerate(known, start=1):
        limits = points(rows, "link_limit_bytes_per_second")
        if limits:
            limit = limits[-1][1]
            _limit(figure, row, clock, limit / 1e9, f"the link carries {format_bandwidth(limit)}")
    figure.update_yaxes(title_text="GB/s", rangemode="tozero")
    _finish(figure, clock, len(known))
    return Chart(
        "timeline-pcie",
        "What went over PCIe",
        "From the GPU's side, as the driver samples it for some milliseconds each time: short copies may fall between "
        f"two samples. Dotted: the payload limit of the link at its best, each way. {_since(clock)}",
        figure,
        _alt_each(known, _OVER_PCIE),
    )


def thinned(series: Sequence[tuple[float, float]], most: int) -> list[tuple[float, float]]:
    """At most about so many points that look the same: of each stretch the first, the last, the least and the most."""
    if len(series) <= most:
        return list(series)
    size = -(-len(series) * 4 // most)
    kept: list[tuple[float, float]] = []
    for begin in range(0, len(series), size):
        stretch = range(begin, min(begin + size, len(series)))
        low, high = (pick(stretch, key=lambda place: series[place][1]) for pick in (min, max))
        kept += (series[place] for place in sorted({stretch[0], low, high, stretch[-1]}))
    return kept


def stretches(series: Sequence[tuple[float, float]], gap_seconds: float) -> list[list[tuple[float, float]]]:
    """The series, cut where two of its points are further apart than ``gap_seconds``."""
    cut: list[list[tuple[float, float]]] = []
    for point in series:
        if not cut or point[0] - cut[-1][-1][0] > gap_seconds:
            cut.append([])
        cut[-1].append(point)
    return cut
