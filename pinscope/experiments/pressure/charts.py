"""What a pressure run looks like: the host's memory over time, what an ordinary process felt, and stalls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from pinscope.analysis.rows import Row
from pinscope.analysis.ways import LineStyle
from pinscope.charts.chart import Chart
from pinscope.charts.plot import RATE, SHARE, Curve, Scale, Spot, curves, linear
from pinscope.experiments.pressure.reading import GIB, STALLS, Stage, Stages, stages
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bytes, format_seconds, format_share

MEMORY = Scale("Memory (GiB)", GIB, format_bytes)
FAULT = Scale("Time (µs)", 1e-6, format_seconds)
STALLED = Scale("Time stalled (%)", 0.01, format_share, reach=0.01)
"""An axis of its own making would blow up noise: 1 % is the least that means anything."""
PINNED = linear("Pinned (GiB)", "about %{x:.3~g} GiB pinned")
HOST: Mapping[str, tuple[str, LineStyle]] = {
    "pinned by this run": ("bytes", LineStyle("pinned")),
    "available": ("available_bytes", LineStyle("pageable", "diamond")),
    "left in the control group": ("cgroup_headroom_bytes", LineStyle("pageable", "diamond-open", "dash")),
    "page cache and shared memory": ("cached_bytes", LineStyle("cached", "square")),
}
"""Line → field of a host's row, and how it is drawn."""
LOOKS: Mapping[str, LineStyle] = {
    "memory_some": LineStyle("stall"),
    "memory_full": LineStyle("stall", "circle-open", "dash"),
    "io_some": LineStyle("cached", "square"),
    "io_full": LineStyle("cached", "square-open", "dash"),
}
"""Of stalls."""
GUIDE = LineStyle("reference", dash="dot")
GREY = "Grey: as it was before pinning. Open marker: after all was given back."


class Part(NamedTuple):
    """One panel: what is shown of a stage, its axis, and its colour's meaning."""

    scale: Scale
    colour: str
    value: Callable[[Stage], float | None]


def draw(run: ExperimentRun, rows: Sequence[Row]) -> list[Chart]:
    """The charts of a run, also of one that still goes on; only those for which something was measured."""
    course = stages(rows)
    return [*_felt(course), *_memory(run, rows), *_stalls(course)]


def _felt(run: Stages) -> Iterator[Chart]:
    """What the verdict speaks of, and what else the ordinary process felt; over pinned memory."""
    if run.before is None or not run.held:
        return
    begun = run.before.reachable_bytes

    def gone(stage: Stage) -> float | None:
        return None if begun is None or stage.reachable_bytes is None else begun - stage.reachable_bytes

    taken = {
        "Gone from available memory": Part(MEMORY, "pinned", gone),
        "Page fault, median": Part(FAULT, "pageable", lambda stage: stage.median("fault_median")),
    }
    felt = {
        "Page fault, longest": Part(FAULT, "pageable", lambda stage: stage.median("fault_longest")),
        "Reading its file again": Part(RATE, "cached", lambda stage: stage.read_bytes_per_second),
        "Its file still in the cache": Part(SHARE, "cached", lambda stage: stage.cached_share),
    }
    yield from _over_pinned(
        run,
        taken,
        "pressure-taken",
        "What pinning took from others",
        "Available memory includes what lies on a processor's list of free pages. An ordinary process touches fresh "
        f"memory page by page; medians over rounds. {GREY}",
    )
    yield from _over_pinned(
        run,
        felt,
        "pressure-felt",
        "What else an ordinary process felt",
        "It touches fresh memory page by page, and reads a file that it read before. Medians over rounds; the longest "
        f"fault of a round may also have waited for a processor. {GREY}",
    )


def _over_pinned(run: Stages, parts: Mapping[str, Part], key: str, title: str, caption: str) -> Iterator[Chart]:
    """A panel for each part that is known: before and all steps, and after."""
    panes, ends = {}, []
    held, after = ([stage for stage in run.all if (stage.phase == "after") is last] for last in (False, True))
    for name, part in parts.items():
        spots, back = _spots(held, part.value), _spots(after, part.value)
        if not spots:
            continue
        most = run.most_bytes
        straight = [Spot(0.0, 0.0, ""), Spot(most / GIB, most, "")] if part.scale is MEMORY else []
        flat = [spot._replace(y=spots[0].y, words="") for spot in (spots[0], spots[-1])] if spots[0].y else []
        panes[name] = {
            "before pinning": Curve(GUIDE, flat, rule=True),
            "with memory pinned": Curve(LineStyle(part.colour), spots),
            "given back": Curve(LineStyle(part.colour, "diamond-open", size=14), back),
            "as much as was pinned": Curve(GUIDE, straight, rule=True),
        }
        ends += [
            (f"{name.lower()}, {when}", part.scale.text(shown[-1].y))
            for when, shown in (("before", spots[:1]), ("with the most pinned", spots[1:]), ("after freeing", back))
            if shown
        ]
    if panes:
        scales = [parts[name].scale for name in panes]
        yield curves(key, title, caption, panes, scales, PINNED, "Over pinned memory", pixels=190, ends=ends)


def _spots(shown: Sequence[Stage], value: Callable[[Stage], float | None]) -> list[Spot]:
    known = [(stage.bytes, value(stage)) for stage in shown]
    return [Spot(held / GIB, amount, f"{format_bytes(held)} pinned") for held, amount in known if amount is not None]


def _memory(run: ExperimentRun, rows: Sequence[Row]) -> Iterator[Chart]:
    host = [row for row in rows if row["kind"] == "host"]
    if not host:
        return
    target = max(row["target_bytes"] for row in host)
    lines = {}
    for name, amount, dash in (("floor", run.params.get("floor"), "dot"), ("meant to be pinned", target, "dash")):
        if amount is not None:
            across = [Spot(seconds, amount, format_bytes(amount)) for seconds in (0.0, host[-1]["elapsed_seconds"])]
            lines[name] = Curve(LineStyle("reference", dash=dash), across, rule=True)
    for name, (field, style) in HOST.items():
        known = [row for row in host if row[field] is not None]
        lines[name] = Curve(style, [Spot(row["elapsed_seconds"], row[field], _when(row)) for row in known])
    drawn = {name: curve.spots for name, curve in lines.items() if curve.spots and not curve.rule}
    yield curves(
        "pressure-memory",
        "What is left for other programs",
        "Read before and after each step. What is pinned is gone from what is available; the page cache counts as "
        "available, until it is pushed out. Grey: where the run stops by itself, and how far it meant to go.",
        {"Memory of the host": lines},
        MEMORY,
        linear("Time (seconds)", "after %{x:.3~g} s"),
        "Memory of the host over time, at most",
        ends=[(name, format_bytes(max(spot.y for spot in spots))) for name, spots in drawn.items()],
    )


def _when(row: Row) -> str:
    words = {"before": "before pinning", "after": "after giving it back"}
    return words.get(row["phase"], f"{format_bytes(row['bytes'])} pinned")


def _share_stalled(name: str) -> Callable[[Stage], float | None]:
    return lambda stage: stage.stalled_share(name)


def _stalls(run: Stages) -> Iterator[Chart]:
    shown = [stage for stage in run.all if stage.phase != "after"]
    lines = {
        words.removesuffix(" waited"): Curve(LOOKS[name], _spots(shown, _share_stalled(name)))
        for name, words in STALLS.items()
    }
    drawn = {name: curve.spots for name, curve in lines.items() if curve.spots}
    if drawn:
        yield curves(
            "pressure-stalls",
            "How long tasks waited for memory or the disk",
            "Shares of each step's time, pinning included, as the kernel counts them for the whole host "
            "(/proc/pressure): at least one task waited, or all of them did.",
            {"Time in which tasks stalled": lines},
            STALLED,
            PINNED,
            "Largest share of a step in which tasks stalled",
            ends=[(name, format_share(max(spot.y for spot in spots))) for name, spots in drawn.items()],
        )
