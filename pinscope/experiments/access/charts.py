"""What an access run looks like: time over the number of uses, and over the share of the data that is used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pinscope.analysis.models import link_limit
from pinscope.charts.marks import Chart
from pinscope.charts.plot import Curve, Panes, Spot, counts, curves, seconds
from pinscope.experiments.access.reading import PATTERNS, WAYS, Accesses, By, Cell, winners
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bandwidth, format_bytes, format_share

BEST_PIXELS, PIXELS = 12, 7
"""Of a marker: of the best way and those as good as it, and of the others."""


def draw(run: ExperimentRun, accesses: Accesses) -> list[Chart]:
    """The charts of a run, also of one that still goes on."""
    size, uses, spacing = accesses.cells[0].bytes, accesses.least("uses"), accesses.least("spacing")
    limit = link_limit(run)
    least = None if limit is None else size / limit
    dotted = "" if least is None else " Dotted: all of it over the link once, at the most that it can carry."
    marks = f"Large markers: the best way, and those as good as it.{dotted}"
    share = "all of it" if spacing == 1 else f"one part of {spacing}"
    words: Mapping[By, tuple[str, str, str]] = {
        "uses": (
            "access-uses",
            "Time over the number of uses",
            f"{format_bytes(size)} on the host, {share} used by each kernel; until the result can be used. {marks}",
        ),
        "spacing": (
            "access-share",
            "Time over the share of the data that is used",
            f"{format_bytes(size)} on the host, used {'once' if uses == 1 else f'{uses} times'}. An explicit copy "
            f"moves all of it, a 2D copy what is used. {marks}",
        ),
    }
    several: list[By] = [by for by in words if len({getattr(cell, by) for cell in accesses.cells}) > 1]
    return [_chart(*words[by], _panes(accesses, by), by, least) for by in several]


def _chart(key: str, title: str, caption: str, panes: Panes, by: By, least: float | None) -> Chart:
    last = max(int(spot.x) for pane in panes.values() for curve in pane.values() for spot in curve.spots)
    x = counts("Uses", "uses") if by == "uses" else counts("Share of the data used", "times what is used", _tick)
    alt, named = f"Time at {_where(by, last)}", len(panes) == 1
    return curves(key, title, caption, panes, seconds("Time"), x, alt, limit=least, ends_named=named)


def _panes(accesses: Accesses, by: By) -> Panes:
    """Each way over the number of uses, or over the share that is used; a panel for each pattern."""
    ways = {title: accesses.over(by, pattern) for pattern, title in PATTERNS.items() if pattern in accesses.patterns}
    best = [cell for alike in accesses.alike.values() for cell in winners(alike)]

    def curve(course: Sequence[Cell]) -> Curve:
        sizes = [BEST_PIXELS if cell in best else PIXELS for cell in course]
        places = [getattr(cell, by) for cell in course]
        spots = [
            Spot(place, cell.seconds, f"{_where(by, place)}, {format_bandwidth(cell.useful_bytes_per_second)}")
            for place, cell in zip(places, course, strict=True)
        ]
        return Curve(replace(WAYS[course[0].way].line, size=sizes), spots)

    return {
        title.capitalize(): {WAYS[way].title: curve(course) for way, course in courses.items()}
        for title, courses in ways.items()
    }


def _where(by: By, at: int) -> str:
    return f"{at} uses" if by == "uses" else f"{format_share(1 / at)} used"


def _tick(spacing: float) -> str:
    return f"{100 / spacing:.{0 if spacing < 16 else 1}f} %"
