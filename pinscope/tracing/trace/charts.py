"""What a trace looks like: the lines that cost most, the memory that each copies, and when it copied and computed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import numpy as np
import plotly.graph_objects as go

from pinscope.analysis.read_rows import Attached, Row
from pinscope.charts.marks import Chart, alt_text, category_rows, put
from pinscope.charts.plot import TimePart, parts_of_time
from pinscope.charts.theme import COLOURS, panels, seconds_unit
from pinscope.errors import InvalidParameter
from pinscope.records.run import Run
from pinscope.tracing.sites import Seen, Site
from pinscope.tracing.stretch import PIECES, Series, Single, Stretch, extent, stretch_of
from pinscope.tracing.trace.reading import Traced
from pinscope.units import format_bytes, format_seconds

MOST_BARS = 10
_SAVED = TimePart("saved if pinned", "pinned")
MOST_DEVICES = 4
"""GPUs that are drawn."""
PANEL_PIXELS, LANE_PIXELS, GAP_PIXELS = 90, 26, 34
MOST_LANES = 8
"""Threads, or streams of a GPU, that are drawn one by one."""
_SERIES: Mapping[tuple[str, str], tuple[str, str]] = {
    ("calls", "copy"): ("CPU held by calls that copy", "issue"),
    ("calls", "wait"): ("CPU held by waiting", "wait"),
    ("calls", "pin"): ("CPU held by pinning and releasing", "pin_call"),
    ("copies", "pageable"): ("pageable copies", "pageable"),
    ("copies", "pinned"): ("pinned copies", "pinned"),
    ("copies", "managed"): ("managed copies", "managed"),
    ("kernels", "compute"): ("kernels", "compute"),
}
_OTHER_COPIES = ("copies on the GPU", "copy")
_NOTHING = go.Scatter(x=[0], y=[0], mode="markers", marker={"opacity": 0}, hoverinfo="skip", showlegend=False)
"""In a panel with nothing in it: without it Plotly would draw no axis."""
TITLE = "When it copied, computed and waited"


def draw(run: Run, traced: Traced) -> list[Chart]:
    """The charts of a trace; none where nothing was copied between host and GPU."""
    del run
    seen = traced.seen
    sites = [site for site in seen.sites if site.row["direction"] in ("h2d", "d2h")][:MOST_BARS]
    if not sites:
        return []
    return [_time(seen, sites)]


def _time(seen: Seen, sites: Sequence[Site]) -> Chart:
    parts = (TimePart("CPU held by the calls", "issue"), TimePart("GPU compute idle", "stall"), _SAVED)
    some_saved = any(site.saved_in_place for site in sites)
    times = {
        site.title: (
            float(site.row["call_seconds"] or 0.0),
            None if site.row["idle_seconds"] is None else float(site.row["idle_seconds"]),
            site.saved_in_place if some_saved else None,
        )
        for site in sites
    }
    chart = parts_of_time(
        "trace-time",
        "What each line's copies cost",
        "By what pinning them would save, then by bytes. CPU held: how long the calls took. GPU compute idle: no "
        "kernel ran while the copies were issued and ran; no moment counts twice. Waits are in a table of their own. "
        f"From the first copy or kernel to the last it took {format_seconds(seen.seconds)}.",
        parts,
        times,
        "CPU held, GPU compute idle, and what pinning would save, of each line",
        ends={name: ", ".join(format_seconds(part) for part in own if part is not None) for name, own in times.items()},
        side_by_side=True,
    )
    reasons = [
        "" if site.saved_in_place else site.unsaved_word or "nothing"
        for site in sites
        if site.saved_in_place is not None
    ]
    chart.figure.update_traces(text=reasons, textposition="outside", cliponaxis=False, selector={"name": _SAVED.name})
    return chart


# When it copied, computed and waited


def timeline(stretch: Stretch) -> Chart:
    """The timeline of a stretch: one panel for the CPU, and two for each GPU, copies and kernels."""
    drawn = _panels(stretch)
    scale, unit = seconds_unit(stretch.seconds)
    heights = [_height(stretch, parts) for _, parts in drawn]
    figure = panels([title for title, _ in drawn], heights, gap=GAP_PIXELS)
    for row, (_, parts) in enumerate(drawn, start=1):
        if stretch.singles and parts:
            lanes = _lanes(stretch, parts)
            put(figure, row, *(_bars(stretch, part, lanes, scale) for part in parts))
            category_rows(figure, row, lanes)
            figure.update_yaxes(showticklabels=False, ticks="", row=row, col=1)
        elif parts:
            put(figure, row, *(_area(stretch, part, row, scale) for part in parts))
            figure.update_yaxes(title_text="Running at<br>once (mean)", rangemode="tozero", nticks=4, row=row, col=1)
        else:
            figure.add_trace(_NOTHING, row=row, col=1)
            figure.update_yaxes(showticklabels=False, ticks="", showgrid=False, zeroline=False, row=row, col=1)
    figure.update_layout(barmode="overlay", hovermode="closest", bargap=0.15)
    figure.update_xaxes(range=[0, stretch.seconds / scale])
    figure.update_xaxes(title_text=f"Time since {_since(stretch)} ({unit})", row=len(drawn), col=1)
    return Chart("trace-timeline", TITLE, _caption(stretch), figure, _alt(stretch))


def moment(stretch: Stretch, x: float) -> int:
    """What a place on the x axis of the stretch's timeline stands for: nanoseconds since the program's start."""
    scale, _ = seconds_unit(stretch.seconds)
    return stretch.begin_ns + round(x * scale * 1e9)


def _since(stretch: Stretch) -> str:
    """When the stretch begins, as exactly as its length asks for."""
    places = min(max(2 - math.floor(math.log10(stretch.seconds)), 0), 9)
    since = f"{stretch.begin_ns / 1e9:.{places}f}"
    return "the program's start" if float(since) == 0 else f"{since} s after the program's start"


def draw_attached(rows: Sequence[Row], attached: Attached) -> Iterator[Chart]:
    """The timeline of all that a trace holds; none where it carries no events, or some that make no sense: the page
    and the file for Perfetto say why."""
    with suppress(InvalidParameter):
        whole = extent(attached, rows)
        if whole is not None:
            yield timeline(stretch_of(attached, whole, whole.begin_ns, whole.end_ns))


def _caption(stretch: Stretch) -> str:
    length = format_seconds(stretch.seconds)
    if not stretch.events:
        return f"No call, copy or kernel ran in these {length}."
    what = f"{stretch.events:,} {'call, copy or kernel' if stretch.events == 1 else 'calls, copies and kernels'}"
    piece = format_seconds(stretch.seconds / PIECES)
    parts = [
        f"{what} in {length}, one by one; a row is a thread or a stream."
        if stretch.singles
        else f"{what} in {length}: how many ran at once, on average in each {piece}."
    ]
    if any(len(_counts(stretch, series)) > MOST_LANES for _, series in _panels(stretch)):
        parts.append(f"Of more than {MOST_LANES} rows in a panel those with the fewest are not drawn.")
    if (more := len(_devices(stretch)) - MOST_DEVICES) > 0:
        parts.append(f"The first {MOST_DEVICES} GPUs are drawn, {more} more are not.")
    return " ".join(parts)


def _alt(stretch: Stretch) -> str:
    busy = [
        (
            _series(part)[0] + (f", {_device(stretch, part[2:])}" if part[2] >= 0 else ""),
            format_seconds(float(pieces.sum()) * stretch.seconds / PIECES),
        )
        for part, pieces in sorted(stretch.at_once.items())
    ]
    return alt_text("Calls, copies and kernels over time, together", busy)


def _series(part: Series) -> tuple[str, str]:
    return _SERIES.get(part[:2], _OTHER_COPIES)


def _devices(stretch: Stretch) -> list[tuple[int, int]]:
    """GPUs, each with the process that sees it so."""
    return sorted({(device, process) for _, device, process in stretch.whole.panels if device >= 0})


def _device(stretch: Stretch, number: tuple[int, int]) -> str:
    device, process = number
    return f"GPU {device} of {stretch.whole.processes[process]}" if process else f"GPU {device}"


def _panels(stretch: Stretch) -> list[tuple[str, list[Series]]]:
    """Title and contents of each panel of the whole trace, from the top: so none jumps. One in which nothing ran says
    so."""
    devices = _devices(stretch)[:MOST_DEVICES]
    wanted = [("calls", (-1, 0)), *((name, device) for device in devices for name in ("copies", "kernels"))]
    titled = []
    computes = bool(stretch.whole.parts.get("kernels"))  # then that a GPU stood idle is what there is to see
    for name, device in wanted:
        parts = sorted(part for part in stretch.at_once if part[0] == name and part[2:] == device)
        if parts or (name, *device) in stretch.whole.panels or (computes and name == "kernels"):
            title = "CPU, in calls of CUDA" if name == "calls" else f"{_device(stretch, device)}, {name}"
            titled.append((title if parts else f"{title}: none", parts))
    return titled


def _height(stretch: Stretch, parts: Sequence[Series]) -> int:
    return LANE_PIXELS * max(len(_lanes(stretch, parts)), 2) if stretch.singles else PANEL_PIXELS


# A stretch with many events


def _area(stretch: Stretch, part: Series, row: int, scale: float) -> go.Scatter:
    name, colour = _series(part)
    edges = np.linspace(0, stretch.seconds, PIECES + 1)
    pieces = np.append(stretch.at_once[part], stretch.at_once[part][-1])  # the last one's step ends at the last edge
    return go.Scatter(
        x=edges / scale,
        y=np.round(pieces, 4),
        name=name,
        mode="lines",
        stackgroup=str(row),
        line={"color": COLOURS[colour], "width": 0, "shape": "hv"},
        fillcolor=COLOURS[colour],
        customdata=[f"{piece:.3g} at once" for piece in pieces.tolist()],
        hovertemplate="%{fullData.name}: %{customdata}<extra></extra>",
    )


# A stretch with few


def _counts(stretch: Stretch, parts: Sequence[Series]) -> Counter[str]:
    """Threads or streams of a panel, each with how many events it has; empty where none is drawn by itself."""
    return Counter(single.lane for single in _of(stretch, parts))


def _lanes(stretch: Stretch, parts: Sequence[Series]) -> list[str]:
    """Those of them that are drawn, from the top: the ones with the most events, in the order of their numbers."""
    most = [lane for lane, _ in _counts(stretch, parts).most_common(MOST_LANES)]
    return sorted(most, key=lambda lane: [int(word) for word in lane.split() if word.isdigit()])


def _of(stretch: Stretch, parts: Sequence[Series]) -> Iterator[Single]:
    for part in parts:
        yield from stretch.singles.get(part, ())


def _bars(stretch: Stretch, part: Series, lanes: Sequence[str], scale: float) -> go.Bar:
    name, colour = _series(part)
    kept = [single for single in _of(stretch, [part]) if single.lane in lanes]
    origin = stretch.begin_ns
    return go.Bar(
        orientation="h",
        name=name,
        y=[single.lane for single in kept],
        base=[(single.begin_ns - origin) / 1e9 / scale for single in kept],
        x=[(single.end_ns - single.begin_ns) / 1e9 / scale for single in kept],
        marker={"color": COLOURS[colour], "line": {"width": 0.5, "color": COLOURS[colour]}},
        customdata=[_words(part, single) for single in kept],
        hovertemplate="%{customdata}<extra></extra>",
    )


def _words(part: Series, single: Single) -> str:
    took = f"{format_seconds((single.end_ns - single.begin_ns) / 1e9)} from {single.begin_ns / 1e9:.6f} s on"
    what = f"{single.name}, {part[1]}, {format_bytes(single.bytes)}" if part[0] == "copies" else single.name
    line = f", {single.line}" if single.line else ""
    return f"{what}{line}, {'thread' if part[0] == 'calls' else 'stream'} {single.lane}: {took}"
