"""What a pressure run looks like: what ordinary processes felt over pinned memory, and who held memory meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from pinscope.analysis.cells import LineStyle
from pinscope.analysis.read_rows import median
from pinscope.charts.marks import Chart
from pinscope.charts.plot import RATE, SHARE, Curve, Scale, Spot, curves, linear, seconds
from pinscope.experiments.pressure.reading import Climb, Course, OnHost, Pressures, Stage
from pinscope.records.run import ExperimentRun
from pinscope.units import GIB, format_bytes, format_seconds, format_share

Lines = Mapping[str, tuple[LineStyle, Callable[[Stage], float | None]]]
"""Name of a line → how it is drawn, and its height at a stage."""
HOST: Lines = {
    "pinned by this run": (LineStyle("pinned"), lambda stage: stage.bytes),
    "available": (LineStyle("pageable", "diamond"), lambda stage: stage.at_end("available_bytes")),
    "left in the control group": (
        LineStyle("pageable", "diamond-open", "dash"),
        lambda stage: stage.at_end("cgroup_headroom_bytes"),
    ),
    "page cache and shared memory": (LineStyle("cached", "square"), lambda stage: stage.at_end("cached_bytes")),
}
GROUP: Lines = {
    "pinned": (LineStyle("pinned"), lambda stage: stage.bytes),
    "page cache": (LineStyle("cached", "square"), lambda stage: stage.at_end("cache_bytes")),
    "all in the group": (LineStyle("pageable", "diamond", "dash"), lambda stage: stage.at_end("used_bytes")),
    "swapped out": (LineStyle("stall", "x", "dot"), lambda stage: stage.at_end("swap_bytes") or None),
}
ROUNDS: Lines = {
    "in the group": (LineStyle("pageable", "diamond"), lambda stage: median(stage.work_seconds)),
    "outside the group": (LineStyle("reference", "circle", "dash"), lambda stage: median(stage.outside_seconds)),
}
FELT: Mapping[str, tuple[Scale, str, Callable[[Stage], float | None]]] = {
    "Page fault": (Scale("Time (µs)", 1e-6, format_seconds), "pageable", lambda stage: median(stage.work_seconds)),
    "Reading its file again": (RATE, "cached", lambda stage: stage.read_bytes_per_second),
    "Its file still in the cache": (SHARE, "cached", lambda stage: stage.cached_share),
}
"""Title of a panel → its axis, its colour's meaning, and its height at a stage."""


def draw(run: ExperimentRun, measured: Pressures) -> Iterator[Chart]:
    """Two of the host, or two for each group."""
    if measured.host:
        yield from _host(measured.host, run.params.get("floor"))
    for group in measured.groups:
        yield from _group(group)


def _spots(
    stages: Sequence[Stage], height: Callable[[Stage], float | None], whole: float, share: bool = False
) -> list[Spot]:
    """A spot for each stage that has the value; ``whole``: bytes of one unit of the axis."""
    known = [(stage.bytes, y) for stage in stages if (y := height(stage)) is not None]
    return [Spot(pinned / whole, y, _pinned(pinned, whole, share)) for pinned, y in known]


def _pinned(nbytes: int, whole: float, share: bool) -> str:
    return f"{format_bytes(nbytes)} pinned" + f" ({format_share(nbytes / whole / 100)})" * share


def _lines(course: Course, lines: Lines, whole: float, share: bool = False) -> dict[str, Curve]:
    """Before and all steps; what has no spot is left out."""
    stages = (course.before, *course.held)
    drawn = {name: Curve(style, _spots(stages, height, whole, share)) for name, (style, height) in lines.items()}
    return {name: curve for name, curve in drawn.items() if curve.spots}


def _most(lines: Mapping[str, Curve], text: Callable[[float], str], end: str = "") -> list[tuple[str, str]]:
    return [(f"{name}{end}", text(max(spot.y for spot in curve.spots))) for name, curve in lines.items()]


def _rule(begin: tuple[float, float], end: tuple[float, float], words: str, dash: str = "dot") -> Curve:
    return Curve(LineStyle("reference", dash=dash), [Spot(x, y, words) for x, y in (begin, end)], rule=True)


def _host(run: OnHost, floor: int | None) -> Iterator[Chart]:
    panes, ends = {}, []
    pinned = linear("Pinned (GiB)", "about %{x:.3~g} GiB pinned")
    for name, (scale, colour, height) in FELT.items():
        spots, back = _spots([run.before, *run.held], height, GIB), _spots(run.all[1 + len(run.held) :], height, GIB)
        if spots:
            panes[name] = {
                "before pinning": _rule((spots[0].x, spots[0].y), (spots[-1].x, spots[0].y), ""),
                "with memory pinned": Curve(LineStyle(colour), spots),
                "given back": Curve(LineStyle(colour, "diamond-open", size=14), back),
            }
            moments = (("before", spots[:1]), ("with the most pinned", spots[1:]), ("after freeing", back))
            ends += [(f"{name.lower()}, {when}", scale.text(part[-1].y)) for when, part in moments if part]
    yield curves(
        "pressure-felt",
        "What an ordinary process felt",
        "It touches fresh memory page by page, and reads a file that it read before. Medians over rounds. Grey: as it "
        "was before pinning. Open marker: after all was given back.",
        panes,
        [FELT[name][0] for name in panes],
        pinned,
        "Over pinned memory",
        pixels=190,
        ends=ends,
    )
    lines, most = _lines(run, HOST, GIB), run.most_bytes
    rules = {} if floor is None else {"floor": _rule((0.0, floor), (most / GIB, floor), format_bytes(floor))}
    if available := run.before.at_end("available_bytes"):
        rules["less what is pinned"] = _rule((0.0, available), (most / GIB, available - most), "", "dash")
    yield curves(
        "pressure-memory",
        "What is left for other programs",
        "Read at the end of each step. What is pinned is gone from what is available; the page cache counts as "
        "available, until it is pushed out. Grey: where the run stops by itself, and what was available before less "
        "what is pinned.",
        {"Memory of the host": lines | rules},
        Scale("Memory (GiB)", GIB, format_bytes),
        pinned,
        "Memory of the host over pinned memory, at most",
        ends=_most(lines, format_bytes),
    )


def _group(climb: Climb) -> Iterator[Chart]:
    limit, kill, ends = climb.limit, climb.kill, (("cliff", climb.cliff), ("killed", climb.kill))
    whole = limit / 100
    key, words = ("-swap", ", with swap") if climb.swap == "with" else ("", "")
    rounds, held = _lines(climb, ROUNDS, whole, True), _lines(climb, GROUP, whole, True)
    heights = [spot.y for curve in rounds.values() for spot in curve.spots]
    marks = [(name, f"at {format_share(mark.bytes / limit)} of the limit") for name, mark in ends if mark]
    pinned = linear(f"Pinned (% of the group's {format_bytes(limit)})", "%{x:.1f} % pinned")
    rules = {"limit": _rule((100.0, min(heights)), (100.0, max(heights)), format_bytes(limit), "solid")}
    if (expected := climb.expected_cliff) is not None:
        low, high = ((expected / whole, height) for height in (min(heights), max(heights)))
        rules["cliff by the group's account"] = _rule(low, high, format_bytes(expected))
    if kill:
        spot = Spot(kill.bytes / whole, max(heights), _pinned(kill.bytes, whole, share=True))
        rules["killed"] = Curve(LineStyle("corrupted", "x", size=13), [spot], rule=True)
    yield curves(
        f"pressure-rounds{key}",
        f"How long others' work takes as pinned memory fills the group{words}",
        "A round writes to all of the process's memory and reads its file. Medians at each step. Grey, dotted: what "
        "the group leaves before anything is pinned; grey, solid: its limit.",
        {f"One round of work{words}": rounds | rules},
        seconds("Time"),
        pinned,
        "Time of a round over pinned memory",
        pixels=330,
        ends=_most(rounds, format_seconds, ", at most") + marks,
    )
    yield curves(
        f"pressure-group{key}",
        f"What the group holds{words}",
        "The group's own account at the end of each step. Once all in the group reaches the limit, the page cache "
        "pays for what is pinned; when that is gone, the kernel kills a process.",
        {f"Memory in the group{words}": held | {"limit": _rule((0.0, limit), (100.0, limit), format_bytes(limit))}},
        Scale("Share of the limit (%)", whole, format_bytes, reach=float(limit)),
        pinned,
        "Largest share of the group's limit",
        ends=_most(held, lambda nbytes: format_share(nbytes / limit)),
    )
