"""What a kept live view looks like: pinned memory, its holders, what it costs each GPU, and what goes over PCIe."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import plotly.graph_objects as go

from pinscope.analysis.cells import LineStyle
from pinscope.charts.marks import Chart, End, name_ends
from pinscope.charts.plot import RATE, Curve, Panes, Scale, Spot, curves, level
from pinscope.charts.theme import DASHES
from pinscope.live.timeline.reading import Life, Watched, points, sampled, summed
from pinscope.records.figure import figures
from pinscope.records.run import Run
from pinscope.records.snapshot import DeviceFigures, HostTotals
from pinscope.text import one_line
from pinscope.units import GIB, MIB, format_bandwidth, format_bytes, format_seconds

MOST_POINTS = 1500
"""Of one line: more than a screen has columns."""
ROOM = 1.05
"""Top of an axis over the largest value."""
LIMIT_IN_SIGHT = 4.0
"""A limit that is more than so many times the largest value would press all lines to the ground: it is named only."""
Series = Sequence[tuple[float, float]]
"""(elapsed seconds, value), in order."""

_UNITS = ((3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))
_HOLDERS = (
    LineStyle("pinned"),
    LineStyle("pageable", dash="dash"),
    LineStyle("write_combined", dash="dashdot"),
    LineStyle("mapped", dash="7px,2px"),
    LineStyle("registered", dash="dot"),
    LineStyle("managed", dash="7px,2px,2px,2px"),
)
"""Of each holder's line: apart for every kind of vision."""
_LABELS = {figure.field: figure.label for record in (HostTotals, DeviceFigures) for figure in figures(record)}
_PINNED = {
    "pinned_bytes": LineStyle("pinned"),
    "explained_bytes": LineStyle("pinned", dash="dash"),
    "other_pinned_bytes": LineStyle("registered", dash="dashdot"),
    "driver_memory_bytes": LineStyle("driver", dash="7px,2px"),
    "mlocked_bytes": LineStyle("locked", dash="dot"),
}
_LEFT = {"available_bytes": LineStyle("pageable"), "cgroup_headroom_bytes": LineStyle("pageable", dash="dash")}
_ON_GPU = {"unattributed_bytes": LineStyle("device"), "page_table_bytes": LineStyle("page_table", dash="dash")}
_OVER_PCIE = {
    "rx_bytes_per_second": LineStyle("copy", dash=DASHES["h2d"]),
    "tx_bytes_per_second": LineStyle("stall", dash=DASHES["d2h"]),
}


@dataclass(frozen=True)
class _Clock:
    """The time axis: its length and unit, and what time of day it was."""

    begun: datetime
    end_seconds: float
    gap_seconds: float
    scale: float
    unit: str

    def words(self, seconds: float) -> str:
        return f"{format_seconds(seconds)}, {self.begun + timedelta(seconds=seconds):%H:%M:%S} UTC"

    def axis(self, figure: go.Figure, _: Sequence[float]) -> None:
        end = self.end_seconds / self.scale
        figure.update_xaxes(range=[0, end], unifiedhovertitle_text=f"%{{x:.1f}} {self.unit}")
        figure.update_xaxes(title_text=f"Time ({self.unit})", row=sum(1 for _ in figure.select_xaxes()), col=1)

    def curve(self, style: LineStyle, series: Series, shape: str = "linear") -> Curve:
        """One line, with a hole in it wherever samples are missing."""
        pieces = stretches(series, self.gap_seconds)
        spots: list[Spot] = []
        for piece in pieces:
            spots += [Spot(piece[0][0] / self.scale, math.nan, "")] if spots else []
            drawn = thinned(piece, max(MOST_POINTS // len(pieces), 8))
            spots += [Spot(at / self.scale, value, self.words(at)) for at, value in drawn]
        return Curve(style, spots, mode="lines" if len(spots) > 1 else "markers", shape=shape)


def draw(run: Run, seen: Watched) -> list[Chart]:
    """The charts of a timeline, also of one that still goes on; only those for which something was seen."""
    del run
    if not seen.host:
        return []
    first = seen.host[0]
    begun = first["taken_at"] - timedelta(seconds=first["elapsed_seconds"])
    end = max(seen.end_seconds, seen.interval_seconds)
    clock = _Clock(begun, end, seen.gap_seconds, *next((pair for pair in _UNITS if end >= 3 * pair[0]), _UNITS[-1]))
    drawn = (_pinned(seen, clock), _holders(seen, clock), _tables(seen, clock), _link(seen, clock))
    return [chart for chart in drawn if chart]


def _draw(
    key: str, title: str, caption: str, panes: Panes, scale: Scale, clock: _Clock, alt: str, ends: Mapping[str, str]
) -> Chart:
    """Curves over the time of day; ``scale`` is in SI units, and says nothing of a hole."""
    known = Scale(scale.title, scale.unit, lambda value: "" if math.isnan(value) else scale.text(value))
    height = 320 if len(panes) == 1 else 220
    caption = f"{caption} Time 0 is {clock.begun:%Y-%m-%d %H:%M:%S} UTC."
    chart = curves(key, title, caption, panes, known, clock.axis, alt, pixels=height, ends=ends.items())
    chart.figure.for_each_trace(
        lambda trace: trace.update(y=[None if math.isnan(height) else height for height in trace.y])
    )
    return chart


def _course(series: Series, text: Callable[[float], str]) -> str:
    """First, most and last."""
    values = [value for _, value in series]
    return ", ".join(text(value) for value in (values[0], max(values), values[-1]))


def _pinned(seen: Watched, clock: _Clock) -> Chart:
    """Totals of the host above, what is left of memory below."""
    series = {name: points(seen.host, name) for name in (*_PINNED, *_LEFT)}
    above, below = (
        {_LABELS[name]: clock.curve(style, series[name]) for name, style in styles.items() if series[name]}
        for styles in (_PINNED, _LEFT)
    )
    most = max((value for name in _PINNED for _, value in series[name]), default=0.0)
    total = seen.host[-1]["total_bytes"]
    in_sight = most * LIMIT_IN_SIGHT >= total
    above[f"host memory {format_bytes(total)}{'' if in_sight else ' (off scale)'}"] = level(total)
    chart = _draw(
        "timeline-pinned",
        "Pinned memory over time",
        "Pinned: pages that the kernel counts as pinned for device access, by any program. Explained: cudaHostAlloc "
        "memory of the holders, their contexts' own, and what the kernel accounts to them. Driver memory: what the "
        "kernel's accounts leave over. Locked memory is not pinned for CUDA.",
        {"Pinned and locked, whole host": above, "Memory left": below},
        Scale("Memory (GiB)", GIB, format_bytes),
        clock,
        f"Memory of the host over {clock.words(clock.end_seconds)}; first, most and last",
        {_LABELS[name]: _course(values, format_bytes) for name, values in series.items() if values},
    )
    if not in_sight:
        top = most / GIB * ROOM or 1.0
        chart.figure.update_yaxes(range=[-0.02 * top, top], row=1, col=1)
    ends = {name: series[name][-1] for name in _PINNED if series[name] and series[name][-1][1]}
    name_ends(
        chart.figure,
        1,
        [End(_LABELS[name], format_bytes(value), at / clock.scale, value / GIB) for name, (at, value) in ends.items()],
    )
    return chart


def _holders(seen: Watched, clock: _Clock) -> Chart | None:
    """Those with the most at their peak, and the sum of all others."""
    known = [life for life in seen.lives if life.peak_bytes]
    if not known:
        return None
    times = [row["elapsed_seconds"] for row in seen.host]
    pane: dict[str, Curve] = {}
    for life, style in zip(known, _HOLDERS, strict=False):
        name = f"{_name(life)}{' again' if _name(life) in pane else ''}"  # the kernel gives an ended one's pid again
        pane[name] = clock.curve(style, sampled(life.amounts, times, life.last_seconds), "hv")
    if others := known[len(_HOLDERS) :]:
        together = sampled(summed(life.amounts for life in others), times, seen.end_seconds)
        pane[f"{len(others)} others together"] = clock.curve(LineStyle("reference"), together, "hv")
    return _draw(
        "timeline-holders",
        "Who held it",
        "cudaHostAlloc and driver memory of each process, and the largest of registered (with the probe), locked and "
        "otherwise pinned memory. A line ends where its process ended or gave all back.",
        {"Held by each process": pane},
        Scale("Held (GiB)", GIB, format_bytes),
        clock,
        "Held at most by each process",
        {_name(life): format_bytes(life.peak_bytes) for life in known},
    )


def _name(life: Life) -> str:
    """A process may call itself what it likes: Plotly must read no markup in it."""
    return f"{one_line(life.name or 'process').replace('<', '‹').replace('>', '›')} (pid {life.pid})"


def _tables(seen: Watched, clock: _Clock) -> Chart | None:
    return _each_gpu(
        seen,
        clock,
        ("timeline-page-tables", "GPU memory of no process"),
        "What is used on each GPU and charged to no process, beside the page tables that the holders' memory implies: "
        "8 bytes a page. What lies above them is the driver's own, managed memory, or page tables of registered "
        "memory.",
        _ON_GPU,
        Scale("GPU memory (MiB)", MIB, format_bytes),
    )


def _link(seen: Watched, clock: _Clock) -> Chart | None:
    return _each_gpu(
        seen,
        clock,
        ("timeline-pcie", "What went over PCIe"),
        "From the GPU's side, as the driver samples it for some milliseconds each time: short copies may fall between "
        "two samples. Dotted: the payload limit of the link at its best, each way.",
        _OVER_PCIE,
        RATE,
        limited=True,
    )


def _each_gpu(
    seen: Watched,
    clock: _Clock,
    names: tuple[str, str],
    caption: str,
    styles: Mapping[str, LineStyle],
    scale: Scale,
    *,
    limited: bool = False,
) -> Chart | None:
    """A panel for each GPU of which any of this is known; ``limited``: with what its link can carry."""
    panes: dict[str, dict[str, Curve]] = {}
    ends: dict[str, str] = {}
    for index, rows in seen.devices.items():
        series = {name: values for name in styles if (values := points(rows, name))}
        pane = {_LABELS[name]: clock.curve(styles[name], values) for name, values in series.items()}
        limits = points(rows, "link_limit_bytes_per_second") if limited else []
        if pane and limits:
            pane[f"the link carries {format_bandwidth(limits[-1][1])}"] = level(limits[-1][1])
        panes |= {f"GPU {index}": pane} if pane else {}
        ends |= {f"GPU {index}, {_LABELS[name]}": _course(values, scale.text) for name, values in series.items()}
    if not panes:
        return None
    return _draw(*names, caption, panes, scale, clock, "Over time; first, most and last", ends)


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
