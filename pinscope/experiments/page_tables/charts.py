"""What a page_tables run looks like: page tables over pinned memory beside the formula, and where the time goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from pinscope.analysis.page_table_model import GPU_PAGE_SIZES, GRANULE_BYTES, page_table_bytes
from pinscope.analysis.rows import grouped, median
from pinscope.analysis.ways import LineStyle
from pinscope.charts.bars import Part, bars
from pinscope.charts.chart import Chart, alt_text
from pinscope.charts.lines import End, line, name_ends, put, reference
from pinscope.charts.theme import DASHES, panels, seconds_unit
from pinscope.experiments.page_tables.arithmetic import GIB, Cost, Growth, costs, way_words
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bytes, format_seconds

MIB = 2**20
BACKING_SYMBOLS: Mapping[str, str] = {
    "": "circle",
    "4k": "triangle-down-open",
    "thp": "square-open",
    "hugetlb": "diamond-open",
    "shm": "cross-open",
    "hugetlb_1g": "diamond-tall-open",
    "shm_open": "x-open",
}
"""Backing → marker; the first is memory that CUDA allocates itself."""
_LOOKS: Mapping[str, tuple[str, str]] = {
    "write_combined": ("write_combined", "square"),
    "portable": ("registered", "triangle-up-open"),
    "created": ("driver", "hexagon"),
    "created_pieces": ("driver", "hexagon-open"),
    "pool": ("driver", "star-open"),
    "pool_granted": ("driver", "star"),
}
"""Way → meaning of its colour and marker, where they are not those of its backing."""


def draw(run: ExperimentRun, rows: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """The charts of a page_tables run; none for a run without a step."""
    found = costs(rows)
    own = [cost for cost in found if cost.way.device == run.device]
    if not own:
        return []
    charts = [_growth(run, own)]
    if len({cost.way.device for cost in found}) > 1:
        charts.append(_devices(found))
    timed = [cost for cost in own if cost.pin_seconds]
    return [*charts, *([_times(timed)] if timed else [])]


def words(cost: Cost) -> str:
    """The way in a legend."""
    return way_words(cost).replace(" (", ", ").removesuffix(")")


def _line(cost: Cost, name: str) -> go.Scatter:
    points = [
        (size / GIB, grown / MIB, f"{format_bytes(size)} pinned: {format_bytes(grown)}")
        for size, grown in zip(cost.growth.bytes, cost.growth.table_bytes, strict=True)
    ]
    colour, symbol = _LOOKS.get(cost.way.memory, (cost.way.memory, BACKING_SYMBOLS[cost.way.backing]))
    made = line(name, LineStyle(colour, symbol, size=7), points)
    return made.update(line={"width": 1.5, "shape": "hv"}, marker={"maxdisplayed": 40})


def _over_pinned(figure: go.Figure) -> go.Figure:
    figure.update_yaxes(title_text="Growth (MiB)", rangemode="tozero")
    return figure.update_xaxes(title_text="Pinned (GiB)", rangemode="tozero")


def _growth(run: ExperimentRun, own: Sequence[Cost]) -> Chart:
    figure = panels(["Page tables"], [300])
    largest = max(cost.growth.bytes[-1] for cost in own)
    for dash, size in zip(("solid", "dash", "dot"), GPU_PAGE_SIZES, strict=True):
        ends = [0, page_table_bytes(largest, size) / MIB]
        put(figure, 1, reference(f"formula, {format_bytes(size)} pages", [0, largest / GIB], ends, dash=dash))
    _over_pinned(figure)
    figure.update_yaxes(range=[0, 1.25 * max(cost.growth.table_bytes[-1] for cost in own) / MIB or 1.0])
    alike = grouped(own, lambda cost: cost.growth.table_bytes[-1] // GRANULE_BYTES).values()
    names = [_way_count(members, len(own)) for members in alike]
    for members, name in zip(alike, names, strict=True):
        put(figure, 1, _line(members[0], name).update(mode="lines"))
    near = max(GRANULE_BYTES, max(cost.growth.table_bytes[-1] for cost in own) // 8)
    name_ends(figure, 1, [_end(members[0], name, near) for members, name in zip(alike, names, strict=True)])
    sharing = "; ".join(", ".join(map(way_words, members)) for members in alike if len(members) > 1)
    what = f"memory of GPU {run.device}" if run.lab == "cuda" else "the kernel's page tables of the process"
    return Chart(
        "page-tables",
        "Page tables over pinned memory",
        f"What {what} grew by as memory was pinned. Grey lines: bytes ÷ page size × 8."
        + (f" Ways to pin that take the same share one line: {sharing}." if sharing else ""),
        figure,
        alt_text("Page tables over pinned memory", [(words(cost), _price(cost.growth)) for cost in own]),
    )


def _end(cost: Cost, name: str, near: int) -> End:
    """Above the line, and above each grey line that ends less than ``near`` bytes above it."""
    pinned, taken = cost.growth.bytes[-1], cost.growth.table_bytes[-1]
    close = [size for page in GPU_PAGE_SIZES if (size := page_table_bytes(pinned, page)) <= taken + near]
    return End(f"{name}:", _short_price(cost.growth), pinned / GIB, max((taken, *close)) / MIB, rises=True)


def _short_price(growth: Growth) -> str:
    each = growth.per_byte
    return format_bytes(growth.table_bytes[-1]) if each is None else f"{format_bytes(each * GIB)} a GiB"


def _price(growth: Growth) -> str:
    """``24.0 MiB for 12.0 GiB, 2.01 MiB a GiB``."""
    each = "" if growth.per_byte is None else f", {format_bytes(growth.per_byte * GIB)} a GiB"
    return f"{format_bytes(growth.table_bytes[-1])} for {format_bytes(growth.bytes[-1])}{each}"


def _way_count(members: Sequence[Cost], of: int) -> str:
    """The way, or how many of all share a line."""
    if len(members) == 1:
        return words(members[0])
    return f"all {of} ways" if len(members) == of else f"{len(members)} of {of} ways"


def _devices(found: Sequence[Cost]) -> Chart:
    """The first way of each GPU."""
    figure = panels(["Page tables on each GPU"], [260])
    first, dashes, symbols = found[0].way, list(DASHES.values()), list(BACKING_SYMBOLS.values())
    members = [cost for cost in found if (cost.way.memory, cost.way.backing) == (first.memory, first.backing)]
    for number, cost in enumerate(members):
        trace = _line(cost, f"GPU {cost.way.device}")
        trace.line.dash, trace.marker.symbol = dashes[number % len(dashes)], symbols[number % len(symbols)]
        put(figure, 1, trace)
    return Chart(
        "page-tables-devices",
        "Page tables of the same memory on each GPU",
        f"What the used memory of each GPU with a context grew by while one process pinned memory "
        f"({words(members[0])}).",
        _over_pinned(figure),
        alt_text("Page tables", [(f"GPU {cost.way.device}", _price(cost.growth)) for cost in members]),
    )


def _times(timed: Sequence[Cost]) -> Chart:
    parts = (
        Part("touching", "touch", {words(cost): median(cost.touch_seconds) or 0.0 for cost in timed}),
        Part("pinning", "pinned", {words(cost): median(cost.pin_seconds) or 0.0 for cost in timed}),
    )
    wholes = {words(cost): sum(part.values[words(cost)] for part in parts) for cost in timed}
    scale, unit = seconds_unit(max(wholes.values()))
    return Chart(
        "pinning-times",
        "Where the time goes",
        "Touching is writing to each page for the first time, by one thread. Where the driver allocates the memory it "
        "touches it too: the bar has one part.",
        bars(
            list(wholes),
            parts,
            f"Time per GiB ({unit})",
            format_seconds,
            scale=scale,
            ends={name: format_seconds(whole) for name, whole in wholes.items()},
        ),
        alt_text("Time to pin a GiB", [(name, format_seconds(whole)) for name, whole in wholes.items()]),
    )
