"""What a pressure run looks like: the host's memory over time, what an ordinary process felt, and stalls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from pinscope.analysis.rows import Row
from pinscope.analysis.ways import LineStyle
from pinscope.charts.chart import Chart, alt_text
from pinscope.charts.lines import line, put, reference
from pinscope.charts.theme import panels
from pinscope.experiments.pressure.arithmetic import GIB, Stage, Stages, median_of, stages
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bandwidth, format_bytes, format_seconds, format_share

_MEMORY = (
    ("pinned by this run", "bytes", LineStyle("pinned")),
    ("available", "available_bytes", LineStyle("pageable", "diamond")),
    ("left in the control group", "cgroup_headroom_bytes", LineStyle("pageable", "diamond-open", "dash")),
    ("page cache and shared memory", "cached_bytes", LineStyle("cached", "square")),
)
"""Line and field of a host's row."""
_STALLS = (
    ("memory, at least one task", "memory_some", LineStyle("stall")),
    ("memory, all tasks", "memory_full", LineStyle("stall", "circle-open", "dash")),
    ("I/O, at least one task", "io_some", LineStyle("cached", "square")),
    ("I/O, all tasks", "io_full", LineStyle("cached", "square-open", "dash")),
)


def draw(run: ExperimentRun, rows: Sequence[Row]) -> list[Chart]:
    """The charts of a run, also of one that still goes on; only those for which something was measured."""
    found = stages(rows)
    drawn = (_taken(found), _felt(found), _memory(run, rows), _stalls(found))
    return [chart for chart in drawn if chart]


def _memory(run: ExperimentRun, rows: Sequence[Row]) -> Chart | None:
    host = [row for row in rows if row["kind"] == "host"]
    if not host:
        return None
    figure = panels(["Memory of the host"], [320])
    ends = [0, host[-1]["elapsed_seconds"]]
    target = max(row["target_bytes"] for row in host)
    most: list[tuple[str, str]] = []
    for name, amount, dash in (("floor", run.params.get("floor"), "dot"), ("meant to be pinned", target, "dash")):
        if amount is not None:
            put(figure, 1, reference(name, ends, [amount / GIB] * 2, f": {format_bytes(amount)}", dash))
    for name, field, look in _MEMORY:
        known = [(row, row[field]) for row in host if row[field] is not None]
        points = [
            (row["elapsed_seconds"], amount / GIB, f"{_when(row)}: {format_bytes(amount)}") for row, amount in known
        ]
        most += [(name, format_bytes(max(amount for _, amount in known)))] if known else []
        if points:
            put(figure, 1, line(name, look, points))
    figure.update_yaxes(title_text="Memory (GiB)", rangemode="tozero")
    figure.update_xaxes(title_text="Time (seconds)", rangemode="tozero")
    return Chart(
        "pressure-memory",
        "What is left for other programs",
        "Read before and after each step. What is pinned is gone from what is available; the page cache counts as "
        "available, until it is pushed out. Grey: where the run stops by itself, and how far it meant to go.",
        figure,
        alt_text("Memory of the host over time, at most", most),
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

    def points(self, shown: Sequence[Stage]) -> list[tuple[float, float, str]]:
        """Of the stages of which it is known: GiB pinned, value on the axis, and what both say."""
        return [
            (stage.bytes / GIB, value * self.scale, f"{format_bytes(stage.bytes)} pinned: {self.text(value)}")
            for stage in shown
            if (value := self.value(stage)) is not None
        ]


def _rate(stage: Stage) -> float | None:
    return 1 / stage.byte_seconds.rounds.median if stage.byte_seconds else None


_FAULT = _Part("Page fault, median", "Time (µs)", "pageable", lambda one: median_of(one.fault), format_seconds, 1e6)
_PARTS = (
    _Part("Page fault, longest", "Time (µs)", "pageable", lambda one: median_of(one.longest), format_seconds, 1e6),
    _Part("Reading its file again", "GB/s", "cached", _rate, format_bandwidth, 1e-9),
    _Part("Its file still in the cache", "Share (%)", "cached", lambda one: one.cached_share, format_share, 100.0),
)


def _felt(found: Stages) -> Chart | None:
    """One panel for each thing the ordinary process felt, over pinned memory: before, all steps, and after."""
    if found.before is None or not found.held:
        return None
    parts = [part for part in _PARTS if part.points(found.all)]
    if not parts:
        return None
    return Chart(
        "pressure-felt",
        "What else an ordinary process felt",
        "It touches fresh memory page by page, and reads a file that it read before. Medians over rounds; the longest "
        "fault of a round may also have waited for a processor. Grey: as it was before pinning. Open marker: after "
        "all was given back.",
        _over_pinned(found, parts),
        _alt(parts, found),
    )


def _taken(found: Stages) -> Chart | None:
    """What the verdict speaks of: what is gone from the memory of everybody, and how long a page fault takes."""
    if found.before is None or not found.held:
        return None
    begun = found.before.reachable_bytes

    def gone(stage: Stage) -> float | None:
        return None if begun is None or stage.reachable_bytes is None else begun - stage.reachable_bytes

    memory = _Part("Gone from available memory", "Memory (GiB)", "pinned", gone, format_bytes, 1 / GIB)
    parts = [part for part in (memory, _FAULT) if part.points(found.all)]
    if not parts:
        return None
    figure = _over_pinned(found, parts)
    if parts[0] is memory:
        most = (found.most_bytes or 0) / GIB
        put(figure, 1, reference("as much as was pinned", [0, most], [0, most]))
    return Chart(
        "pressure-taken",
        "What pinning took from others",
        "Available memory includes what lies on a processor's list of free pages. An ordinary process touches fresh "
        "memory page by page; medians over rounds. Grey: as it was before pinning. Open marker: after all was given "
        "back.",
        figure,
        _alt(parts, found),
    )


def _alt(parts: Sequence[_Part], found: Stages) -> str:
    """Each thing before, with the most pinned and afterwards."""
    named = [
        (found.before, "before"),
        (found.held[-1], f"with {format_bytes(found.held[-1].bytes)} pinned"),
        (next((one for one in found.all if one.phase == "after"), None), "after freeing"),
    ]
    return alt_text(
        "Over pinned memory",
        [
            (f"{part.title.lower()}, {when}", part.text(value))
            for part in parts
            for stage, when in named
            if stage is not None and (value := part.value(stage)) is not None
        ],
    )


def _over_pinned(found: Stages, parts: Sequence[_Part]) -> go.Figure:
    """A panel for each part."""
    figure = panels([part.title for part in parts], [190] * len(parts))
    for row, part in enumerate(parts, start=1):
        pinned = part.points([stage for stage in found.all if stage.phase != "after"])
        after = part.points([stage for stage in found.all if stage.phase == "after"])
        hover = f"{part.title}, %{{customdata}}<extra></extra>"
        if pinned:
            if pinned[0][1]:
                put(figure, row, reference("before pinning", [0, pinned[-1][0]], [pinned[0][1]] * 2))
            mode = "lines+markers" if len(pinned) > 1 else "markers"
            put(figure, row, line("with memory pinned", LineStyle(part.colour), pinned, mode=mode, hovertemplate=hover))
        if after:
            look = LineStyle(part.colour, "diamond-open", size=14)
            put(figure, row, line("given back", look, after, mode="markers", hovertemplate=hover, cliponaxis=False))
        figure.update_yaxes(title_text=part.unit, rangemode="tozero", row=row, col=1)
    figure.update_xaxes(range=_x_range(found), unifiedhovertitle_text="about %{x:.3~g} GiB pinned")
    figure.update_xaxes(title_text="Pinned (GiB)", row=len(parts), col=1)
    return figure


def _x_range(found: Stages) -> list[float]:
    """GiB, with room at both ends: markers there would be cut in half."""
    most = (found.most_bytes or GIB) / GIB
    return [-0.04 * most, 1.04 * most]


def _share_stalled(field: str) -> Callable[[Stage], float | None]:
    return lambda stage: stage.stalled[field]


def _stalls(found: Stages) -> Chart | None:
    shown = [stage for stage in found.all if stage.phase != "after"]
    known = [share for stage in shown for share in stage.stalled.values() if share is not None]
    if not known:
        return None
    figure = panels(["Time in which tasks stalled"], [240])
    for name, field, look in _STALLS:
        part = _Part(name, "%", look.colour, _share_stalled(field), format_share, 100.0)
        if points := part.points(shown):
            put(figure, 1, line(name, look, points))
    # An axis of its own making would blow up noise: 1 % is the least that means anything.
    top = max(105 * max(known), 1.0)
    figure.update_yaxes(title_text="Time stalled (%)", range=[-0.04 * top, top])
    figure.update_xaxes(title_text="Pinned (GiB)", range=_x_range(found))
    return Chart(
        "pressure-stalls",
        "How long tasks waited for memory or the disk",
        "Shares of each step's time, pinning included, as the kernel counts them for the whole host "
        "(/proc/pressure): at least one task waited, or all of them did.",
        figure,
        alt_text(
            "Largest share of a step in which tasks stalled",
            [
                (name, format_share(max(known)))
                for name, field, _ in _STALLS
                if (known := [share for stage in shown if (share := stage.stalled[field]) is not None])
            ],
        ),
    )
