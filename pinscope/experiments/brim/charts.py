"""What a brim run looks like: how long others' work takes as a group fills up, and what the group holds meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import plotly.graph_objects as go

from pinscope.analysis.rows import Row
from pinscope.analysis.statistics import Summary
from pinscope.analysis.ways import LineStyle
from pinscope.charts.chart import Chart, alt_text
from pinscope.charts.lines import line, put, reference
from pinscope.charts.theme import panels, seconds_axis
from pinscope.experiments.brim.arithmetic import Climb, Step, climbs
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bytes, format_seconds, format_share

_HELD: Sequence[tuple[str, LineStyle, Callable[[Step], int | None]]] = (
    ("pinned", LineStyle("pinned"), lambda step: step.bytes),
    ("page cache", LineStyle("cached", "square"), lambda step: step.group.cache_bytes if step.group else None),
    (
        "all in the group",
        LineStyle("pageable", "diamond", "dash"),
        lambda step: step.group.used_bytes if step.group else None,
    ),
    (
        "swapped out",
        LineStyle("stall", "x", "dot"),
        lambda step: (step.group.swap_bytes or None) if step.group else None,
    ),
)
_ROUNDS: Sequence[tuple[str, LineStyle, Callable[[Step], Summary | None]]] = (
    ("in the group", LineStyle("pageable", "diamond"), lambda step: step.inside),
    ("outside the group", LineStyle("reference", "circle", "dash"), lambda step: step.outside),
)


def draw(run: ExperimentRun, rows: Sequence[Row]) -> list[Chart]:
    """The charts of a run, also of one that still goes on; two for each group."""
    found = [climb for climb in climbs(rows) if climb.held]
    return [chart for climb in found for chart in (_rounds(climb), _memory(climb))]


def _key(climb: Climb) -> tuple[str, str]:
    return ("-swap", ", with swap") if climb.swap else ("", "")


def _percent(climb: Climb, nbytes: float) -> float:
    return 100 * nbytes / climb.limit


def _at(climb: Climb, step: Step) -> str:
    return f"{format_bytes(step.bytes)} pinned ({format_share(step.bytes / climb.limit)})"


def _rounds(climb: Climb) -> Chart:
    key, words = _key(climb)
    figure = panels([f"One round of work{words}"], [330])
    shown = (climb.before, *climb.held)
    most: list[tuple[str, str]] = []
    for name, look, part in _ROUNDS:
        points = [
            (_percent(climb, step.bytes), summary.median, f"{_at(climb, step)}: {format_seconds(summary.median)}")
            for step in shown
            if (summary := part(step))
        ]
        if points:
            put(figure, 1, line(name, look, points))
            most.append((f"{name}, at most", format_seconds(max(point[1] for point in points))))
    _mark_ends(figure, climb, most)
    seconds_axis(figure, "Time")
    _share_axis(figure, climb)
    return Chart(
        f"brim-rounds{key}",
        f"How long others' work takes as pinned memory fills the group{words}",
        "A round writes to all of the process's memory and reads its file. Medians at each step. Grey, dotted: what "
        "the group leaves before anything is pinned; grey, solid: its limit.",
        figure,
        alt_text("Time of a round over pinned memory", most),
    )


def _mark_ends(figure: go.Figure, climb: Climb, most: list[tuple[str, str]]) -> None:
    """Upright lines where the cliff is expected and where the limit is, and a cross where a process was killed."""
    heights = [value for trace in figure.data for value in trace.y]
    if not heights:
        return
    low, high = min(heights), max(heights)
    ends = (("cliff by the group's account", climb.expected_cliff, "dot"), ("limit", climb.limit, "solid"))
    for name, nbytes, dash in ends:
        if nbytes is not None:
            x = _percent(climb, nbytes)
            put(figure, 1, reference(name, [x, x], [low, high], f": {format_bytes(nbytes)}", dash))
    for mark, name in ((climb.cliff, "cliff"), (climb.mark("killed"), "killed")):
        if mark is not None:
            most.append((name, f"at {format_share(mark.bytes / climb.limit)} of the limit"))
    if killed := climb.mark("killed"):
        text = f"{format_bytes(killed.bytes)} pinned ({format_share(killed.bytes / climb.limit)})"
        look = LineStyle("corrupted", "x", size=13)
        point = (_percent(climb, killed.bytes), high, text)
        put(figure, 1, line("killed", look, [point], mode="markers", cliponaxis=False))


def _memory(climb: Climb) -> Chart:
    key, words = _key(climb)
    figure = panels([f"Memory in the group{words}"], [280])
    shown, most = (climb.before, *climb.held), []
    for name, look, part in _HELD:
        points = [
            (_percent(climb, step.bytes), _percent(climb, held), f"{_at(climb, step)}: {format_bytes(held)}")
            for step in shown
            if (held := part(step)) is not None
        ]
        if points:
            put(figure, 1, line(name, look, points))
            most.append((name, f"{max(point[1] for point in points):.0f} %"))
    put(figure, 1, reference("limit", [0, 100], [100, 100], f": {format_bytes(climb.limit)}"))
    figure.update_yaxes(title_text="Share of the limit (%)", range=[-4, 106])
    _share_axis(figure, climb)
    return Chart(
        f"brim-memory{key}",
        f"What the group holds{words}",
        "The group's own account at the end of each step. Once all in the group reaches the limit, the page cache "
        "pays for what is pinned; when that is gone, the kernel kills a process.",
        figure,
        alt_text("Largest share of the group's limit", most),
    )


def _share_axis(figure: go.Figure, climb: Climb) -> None:
    figure.update_xaxes(
        title_text=f"Pinned (% of the group's {format_bytes(climb.limit)})",
        range=[-3, 104],
        unifiedhovertitle_text="%{x:.1f} % pinned",
    )
