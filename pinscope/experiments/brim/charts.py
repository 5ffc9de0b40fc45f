"""What a brim run looks like: how long others' work takes as a group fills up, and what the group holds meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from pinscope.analysis.rows import Row, median
from pinscope.analysis.ways import LineStyle
from pinscope.charts.chart import Chart
from pinscope.charts.plot import Axis, Curve, Scale, Spot, curves, linear, seconds
from pinscope.experiments.brim.reading import Climb, Step, climbs
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bytes, format_seconds, format_share

HELD: Mapping[str, tuple[LineStyle, Callable[[Step], int | None]]] = {
    "pinned": (LineStyle("pinned"), lambda step: step.bytes),
    "page cache": (LineStyle("cached", "square"), lambda step: step.account("cache_bytes")),
    "all in the group": (LineStyle("pageable", "diamond", "dash"), lambda step: step.account("used_bytes")),
    "swapped out": (LineStyle("stall", "x", "dot"), lambda step: step.account("swap_bytes") or None),
}
ROUNDS: Mapping[str, tuple[LineStyle, Callable[[Step], float | None]]] = {
    "in the group": (LineStyle("pageable", "diamond"), lambda step: median(step.inside)),
    "outside the group": (LineStyle("reference", "circle", "dash"), lambda step: median(step.outside)),
}


def draw(run: ExperimentRun, rows: Sequence[Row]) -> list[Chart]:
    """The charts of a run, also of one that still goes on; two for each group."""
    return [chart for climb in climbs(rows) if climb.held for chart in _charts(climb)]


def _charts(climb: Climb) -> Iterator[Chart]:
    limit, kill = climb.limit, climb.kill
    key, words = ("-swap", ", with swap") if climb.swap else ("", "")
    rounds, held = _lines(climb, ROUNDS), _lines(climb, HELD)
    most = {name: max(spot.y for spot in curve.spots) for name, curve in (rounds | held).items() if curve.spots}
    heights = [spot.y for curve in rounds.values() for spot in curve.spots] or [0.0]
    marks = [(name, mark.bytes / limit) for name, mark in (("cliff", climb.cliff), ("killed", kill)) if mark]
    ends = (("cliff by the group's account", climb.expected_cliff, "dot"), ("limit", limit, "solid"))
    for name, nbytes, dash in ends:
        if nbytes is not None:
            upright = [Spot(100 * nbytes / limit, y, format_bytes(nbytes)) for y in (min(heights), max(heights))]
            rounds[name] = Curve(LineStyle("reference", dash=dash), upright, rule=True)
    if kill:
        rounds["killed"] = Curve(
            LineStyle("corrupted", "x", size=13), [_spot(climb, kill.bytes, max(heights))], rule=True
        )
    across = [Spot(x, limit, format_bytes(limit)) for x in (0.0, 100.0)]
    held["limit"] = Curve(LineStyle("reference", dash="dot"), across, rule=True)
    axis: Axis = linear(f"Pinned (% of the group's {format_bytes(limit)})", "%{x:.1f} % pinned")
    yield curves(
        f"brim-rounds{key}",
        f"How long others' work takes as pinned memory fills the group{words}",
        "A round writes to all of the process's memory and reads its file. Medians at each step. Grey, dotted: what "
        "the group leaves before anything is pinned; grey, solid: its limit.",
        {f"One round of work{words}": rounds},
        seconds("Time"),
        axis,
        "Time of a round over pinned memory",
        pixels=330,
        ends=[
            *((f"{name}, at most", format_seconds(most[name])) for name in ROUNDS if name in most),
            *((name, f"at {format_share(share)} of the limit") for name, share in marks),
        ],
    )
    yield curves(
        f"brim-memory{key}",
        f"What the group holds{words}",
        "The group's own account at the end of each step. Once all in the group reaches the limit, the page cache "
        "pays for what is pinned; when that is gone, the kernel kills a process.",
        {f"Memory in the group{words}": held},
        Scale("Share of the limit (%)", limit / 100, format_bytes, reach=float(limit)),
        axis,
        "Largest share of the group's limit",
        ends=[(name, format_share(most[name] / limit)) for name in HELD if name in most],
    )


def _lines(climb: Climb, kinds: Mapping[str, tuple[LineStyle, Callable[[Step], float | None]]]) -> dict[str, Curve]:
    steps = (climb.before, *climb.held)
    return {
        name: Curve(style, [_spot(climb, step.bytes, y) for step in steps if (y := value(step)) is not None])
        for name, (style, value) in kinds.items()
    }


def _spot(climb: Climb, nbytes: int, y: float) -> Spot:
    share = nbytes / climb.limit
    return Spot(100 * share, y, f"{format_bytes(nbytes)} pinned ({format_share(share)})")
