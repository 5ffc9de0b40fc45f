"""What a staging run looks like: what each way takes, and its rate over the size."""

from __future__ import annotations

from collections.abc import Iterator

from pinscope.analysis.models import link_limit
from pinscope.charts.marks import Chart
from pinscope.charts.plot import RATE, Curve, Spot, TimePart, curves, parts_of_time, sizes
from pinscope.experiments.staging.reading import Cell, Staging
from pinscope.experiments.staging.ways import WAYS
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bytes, format_seconds

_PARTS = [
    TimePart("before the first copy", "touch", "/"),
    TimePart("copies", "copy"),
    TimePart("after the last", "reference", "."),
]
_SIZES = sizes("Size (bytes, log scale)")


def draw(run: ExperimentRun, staging: Staging) -> list[Chart]:
    """The charts of a run, also of one that still goes on."""
    limit = link_limit(run)
    rates = [_rates(staging, limit)] if len(staging.sizes) > 1 else []
    return [*_answer(staging, limit), *_answer(staging, limit, back=True), *rates]


def _answer(staging: Staging, limit: float | None, back: bool = False) -> Iterator[Chart]:
    """Every way to the GPU, or from it, for the usual size, once, in parts; none where none was measured."""
    size, uses = format_bytes(staging.size), staging.uses(staging.size)[0]
    ways = [
        cell
        for way, cell in staging.at(uses=uses).items()
        if not {"half", "alike"} & WAYS[way].kinds and ("back" in WAYS[way].kinds) == back
    ]
    if not ways:
        return
    towards = "from the GPU" if back else "to the GPU"
    least = None if limit is None else staging.size * uses / limit
    dotted = "" if least is None else f" Dotted: the least time that the link takes, {format_seconds(least)}."
    yield parts_of_time(
        "staging-answer-back" if back else "staging-answer",
        f"{size} {towards}, {'once' if uses == 1 else f'{uses} times'}",
        "Medians, in parts: until the first copy begins (allocating, filling or registering), copies, and what is "
        f"given back after them. Where copies begin at once, filling is part of them.{dotted}",
        _PARTS,
        {
            cell.title: (cell.prepare_seconds, max(cell.copy_seconds, 0.0), cell.finish_seconds)
            for cell in sorted(ways, key=lambda cell: cell.seconds)
        },
        f"Time to bring {size} {towards}",
        least=least,
    )


def _rates_over_size(staging: Staging, uses: int, back: bool = False) -> dict[str, Curve]:
    """Each way that is drawn, to the GPU or from it, with the best number of threads."""
    sizes = [staging.at(size, uses=uses) for size in staging.sizes]
    spots = {name: [_spot(at[name]) for at in sizes if name in at] for name in WAYS}
    return {
        way.title: Curve(way.style, spots[name])
        for name, way in WAYS.items()
        if way.style and "half" not in way.kinds and ("back" in way.kinds) == back and spots[name]
    }


def _spot(cell: Cell) -> Spot:
    return Spot(cell.bytes, cell.bytes_per_second, f"{format_bytes(cell.bytes)}, {cell.title}")


def _rates(staging: Staging, limit: float | None) -> Chart:
    panes = {
        "Used once" if uses == 1 else f"The same data {uses} times": _rates_over_size(staging, uses)
        for uses in staging.uses()
    }
    panes["From the GPU"] = _rates_over_size(staging, staging.uses()[0], back=True)
    panes = {title: pane for title, pane in panes.items() if pane}
    return curves(
        "staging-rates",
        "Rate from ready data to data that is there",
        "Bytes brought, over the time from ready data until it is there. Ways with threads: the best number of "
        "them." + (" Dotted: the most that the link can carry." if limit is not None else ""),
        panes,
        RATE,
        _SIZES,
        "Rate over the size; at the largest of each",
        limit=limit,
    )
