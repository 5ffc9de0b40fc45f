"""When a trace's calls held the CPU, and when its copies and kernels ran."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import numpy as np
import plotly.graph_objects as go

from pinscope.analysis.attached import Attached
from pinscope.charts.bars import category_rows
from pinscope.charts.chart import Chart, alt_text
from pinscope.charts.lines import put
from pinscope.charts.theme import COLOURS, panels, seconds_unit
from pinscope.errors import InvalidParameter
from pinscope.experiments.trace.stretch import PIECES, Part, Single, Stretch, extent, stretch_of
from pinscope.units import format_bytes, format_seconds

MOST_DEVICES = 4
"""GPUs that are drawn."""
PANEL_PIXELS, LANE_PIXELS, GAP_PIXELS = 90, 26, 34
MOST_LANES = 8
"""Threads, or streams of a GPU, that are drawn one by one."""
_SERIES: Mapping[tuple[str, str], tuple[str, str]] = {
    ("calls", "copy"): ("CPU held by calls that copy", "issue"),
    ("calls", "wait"): ("CPU held by waiting", "wait"),
    ("calls", "pin"): ("CPU held by pinning and releasing", "pinned"),
    ("copies", "pageable"): ("pageable copies", "pageable"),
    ("copies", "pinned"): ("pinned copies", "pinned"),
    ("copies", "managed"): ("managed copies", "managed"),
    ("kernels", "compute"): ("kernels", "compute"),
}
_OTHER_COPIES = ("copies on the GPU", "copy")


def timeline(stretch: Stretch, key: str = "trace-timeline") -> Chart:
    """The timeline of a stretch: one panel for the CPU, and two for each GPU, copies and kernels."""
    shown = _panels(stretch)
    scale, unit = seconds_unit((stretch.end_ns - stretch.begin_ns) / 1e9)
    heights = [_height(stretch, parts) for _, parts in shown]
    figure = panels([title for title, _ in shown], heights, gap=GAP_PIXELS)
    for row, (_, parts) in enumerate(shown, start=1):
        if stretch.singles:
            lanes = _lanes(stretch, parts)
            put(figure, row, *(_bars(stretch, part, lanes, scale) for part in parts))
            category_rows(figure, row, lanes)
            figure.update_yaxes(showticklabels=False, ticks="", row=row, col=1)
        else:
            put(figure, row, *(_area(stretch, part, row, scale) for part in parts))
            figure.update_yaxes(title_text="At once", rangemode="tozero", row=row, col=1)
    figure.update_layout(barmode="overlay", hovermode="closest", bargap=0.15)
    figure.update_xaxes(range=[0, (stretch.end_ns - stretch.begin_ns) / 1e9 / scale])
    figure.update_xaxes(title_text=f"Time since {_since(stretch)} ({unit})", row=len(shown), col=1)
    return Chart(key, "When it copied, computed and waited", _caption(stretch), figure, _alt(stretch))


def moment(stretch: Stretch, x: float) -> int:
    """What a place on the x axis of the stretch's timeline stands for: nanoseconds since the program's start."""
    scale, _ = seconds_unit((stretch.end_ns - stretch.begin_ns) / 1e9)
    return stretch.begin_ns + round(x * scale * 1e9)


def _since(stretch: Stretch) -> str:
    """When the stretch begins, as exactly as its length asks for."""
    places = min(max(2 - math.floor(math.log10((stretch.end_ns - stretch.begin_ns) / 1e9)), 0), 9)
    since = f"{stretch.begin_ns / 1e9:.{places}f}"
    return "the program's start" if float(since) == 0 else f"{since} s after the program's start"


def draw_whole(attached: Attached) -> Iterator[Chart]:
    """The timeline of all that a trace holds; none where it carries no events, or some that make no sense: the page
    and the file for Perfetto say why."""
    with suppress(InvalidParameter):
        whole = extent(attached)
        if whole is not None:
            yield timeline(stretch_of(attached, whole, whole.begin_ns, whole.end_ns))


def _caption(stretch: Stretch) -> str:
    length = format_seconds((stretch.end_ns - stretch.begin_ns) / 1e9)
    what = (
        f"Each of the {stretch.events:,} calls, copies and kernels in {length}; a row is a thread or a stream."
        if stretch.singles
        else f"{stretch.events:,} calls, copies and kernels in {length}: how many ran at once, on average in each "
        f"{format_seconds((stretch.end_ns - stretch.begin_ns) / 1e9 / PIECES)}."
    )
    left_out = len(_devices(stretch)) - MOST_DEVICES
    return f"{what} Of further GPUs nothing is drawn: {left_out}." if left_out > 0 else what


def _alt(stretch: Stretch) -> str:
    busy = [
        (_series(part)[0] + (f", {_device(part[2], part[3])}" if part[2] >= 0 else ""),
         format_seconds(float(pieces.sum()) * (stretch.end_ns - stretch.begin_ns) / 1e9 / PIECES))
        for part, pieces in sorted(stretch.at_once.items())
    ]  # fmt: skip
    return alt_text("Calls, copies and kernels over time, together", busy)


def _series(part: Part) -> tuple[str, str]:
    return _SERIES.get(part[:2], _OTHER_COPIES)


def _devices(stretch: Stretch) -> list[tuple[int, int]]:
    """GPUs, each with the process that sees it so."""
    return sorted({(device, process) for _, _, device, process in stretch.at_once if device >= 0})


def _device(device: int, process: int) -> str:
    return f"GPU {device} of process {process}" if process else f"GPU {device}"


def _panels(stretch: Stretch) -> list[tuple[str, list[Part]]]:
    """Title and contents of each panel, from the top; one that says so where nothing ran."""
    devices = _devices(stretch)[:MOST_DEVICES]
    wanted = [("calls", (-1, 0)), *((name, device) for device in devices for name in ("copies", "kernels"))]
    found = []
    for name, device in wanted:
        parts = sorted(part for part in stretch.at_once if part[0] == name and part[2:] == device)
        if parts:
            found.append(("CPU, in calls of CUDA" if name == "calls" else f"{_device(*device)}, {name}", parts))
    return found or [("Nothing ran", [])]


def _height(stretch: Stretch, parts: Sequence[Part]) -> int:
    return LANE_PIXELS * max(len(_lanes(stretch, parts)), 2) if stretch.singles else PANEL_PIXELS


# A stretch with many events


def _area(stretch: Stretch, part: Part, row: int, scale: float) -> go.Scatter:
    name, colour = _series(part)
    edges = np.linspace(0, (stretch.end_ns - stretch.begin_ns) / 1e9, PIECES + 1)
    pieces = stretch.at_once[part]
    return go.Scatter(
        x=edges[:-1] / scale, y=np.round(pieces, 4), name=name, mode="lines", stackgroup=str(row),
        line={"color": COLOURS[colour], "width": 0, "shape": "hv"}, fillcolor=COLOURS[colour],
        customdata=[f"{piece:.3g} at once" for piece in pieces.tolist()],
        hovertemplate="%{fullData.name}: %{customdata}<extra></extra>",
    )  # fmt: skip


# A stretch with few


def _lanes(stretch: Stretch, parts: Sequence[Part]) -> list[str]:
    """Threads or streams of a panel, those with the most events."""
    counts: dict[str, int] = {}
    for single in _of(stretch, parts):
        counts[single.lane] = counts.get(single.lane, 0) + 1
    return sorted(sorted(counts, key=lambda lane: -counts[lane])[:MOST_LANES])


def _of(stretch: Stretch, parts: Sequence[Part]) -> Iterator[Single]:
    for part in parts:
        yield from stretch.singles.get(part, ())


def _bars(stretch: Stretch, part: Part, lanes: Sequence[str], scale: float) -> go.Bar:
    name, colour = _series(part)
    kept = [single for single in _of(stretch, [part]) if single.lane in lanes]
    origin = stretch.begin_ns
    return go.Bar(
        orientation="h", name=name, y=[single.lane for single in kept],
        base=[(single.begin_ns - origin) / 1e9 / scale for single in kept],
        x=[(single.end_ns - single.begin_ns) / 1e9 / scale for single in kept],
        marker={"color": COLOURS[colour], "line": {"width": 0.5, "color": COLOURS[colour]}},
        customdata=[_words(part, single) for single in kept], hovertemplate="%{customdata}<extra></extra>",
    )  # fmt: skip


def _words(part: Part, single: Single) -> str:
    took = f"{format_seconds((single.end_ns - single.begin_ns) / 1e9)} from {single.begin_ns / 1e9:.6f} s on"
    if part[0] == "calls":
        return f"{single.name}, thread {single.lane}: {took}"
    what = f"{single.name}, {part[1]}, {format_bytes(single.bytes)}" if part[0] == "copies" else single.name
    return f"{what}, stream {single.lane}: {took}"
