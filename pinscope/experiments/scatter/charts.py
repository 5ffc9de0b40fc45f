"""What a run of many small copies looks like: rate over the size of a piece and the kernel's blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pinscope.analysis.cells import LineStyle
from pinscope.analysis.models import link_limit
from pinscope.analysis.read_rows import grouped
from pinscope.charts.marks import Chart
from pinscope.charts.plot import RATE, Curve, Spot, counts, curves, sizes
from pinscope.charts.theme import DIRECTION_TITLES
from pinscope.experiments.scatter.reading import TOWARDS, Cell, Scatter
from pinscope.experiments.scatter.ways import WAYS, Variant
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bandwidth, format_bytes

_BLOCKS = (LineStyle("mapped", "triangle-up"), LineStyle("pinned"), LineStyle("issue", "square"))
"""Of the smallest, a middle and the largest size."""


def draw(run: ExperimentRun, scatter: Scatter) -> list[Chart]:
    """The charts of a run, also of one that still goes on."""
    limit = link_limit(run)
    return [*_rates(scatter, limit), *_blocks(scatter, limit)]


def _dotted(limit: float | None) -> str:
    return "" if limit is None else f" Dotted: the most that the link can carry, {format_bandwidth(limit)}."


def _spot(cell: Cell) -> Spot:
    words = f"{format_bytes(cell.bytes)}{Variant(cell.way, cell.blocks, cell.threads).words}"
    return Spot(cell.bytes, cell.bytes_per_second, words)


def _rates(scatter: Scatter, limit: float | None) -> Iterator[Chart]:
    """A chart for each layout: every way over the size of a piece, a panel for each direction."""
    best = [cell for pieces in scatter.cases.values() for cell in pieces.ways.values()]
    for layout, cells in grouped(best, lambda cell: cell.layout).items():
        panes = grouped(cells, lambda cell: cell.direction)
        least = min(cell.bytes for cell in cells)
        yield curves(
            f"scatter-{layout}",
            f"Rate by the size of a piece, {layout}",
            "From the first call until all pieces are in place. Of the kernel and the CPU: the fewest blocks or "
            f"threads that nearly reach their best.{_dotted(limit)}",
            {DIRECTION_TITLES[direction]: _by_way(pane) for direction, pane in panes.items()},
            RATE,
            sizes("Size of a piece (bytes, log scale)"),
            f"Rate over the size of a piece, {layout}; at {format_bytes(least)}",
            limit=limit,
            pixels=240,
            ends=[
                (f"{cell.title} {TOWARDS[cell.direction]}", format_bandwidth(cell.bytes_per_second))
                for cell in cells
                if cell.bytes == least
            ],
        )


def _by_way(cells: Sequence[Cell]) -> dict[str, Curve]:
    groups = grouped(cells, lambda cell: WAYS[cell.way])
    return {way.title: Curve(way.style, list(map(_spot, group))) for way, group in groups.items() if way.style}


def _blocks(scatter: Scatter, limit: float | None) -> Iterator[Chart]:
    """The kernel's rate over its blocks, for sizes of the first layout."""
    layout = scatter.cells[0].layout
    kernels = [cell for cell in scatter.cells if cell.way == "kernel" and cell.layout == layout]
    if len({cell.blocks for cell in kernels}) < 2:
        return
    measured = sorted({cell.bytes for cell in kernels})
    styles = dict(zip(dict.fromkeys((measured[0], measured[len(measured) // 2], measured[-1])), _BLOCKS, strict=False))
    panes = grouped([cell for cell in kernels if cell.bytes in styles], lambda cell: cell.direction)
    enough = [pieces.ways["kernel"] for case, pieces in scatter.cases.items() if case[1] == layout]
    yield curves(
        "scatter-blocks",
        "How many multiprocessors the kernel needs",
        f"Each block of 512 threads takes one, as long as there are others; {layout} pieces in "
        f"{format_bytes(scatter.area)}.{_dotted(limit)}",
        {
            DIRECTION_TITLES[direction]: {
                f"pieces of {format_bytes(size)}": Curve(
                    styles[size],
                    [Spot(cell.blocks or 0, cell.bytes_per_second, f"{cell.blocks} blocks") for cell in group],
                )
                for size, group in grouped(pane, lambda cell: cell.bytes).items()
            }
            for direction, pane in panes.items()
        },
        RATE,
        counts("Blocks of the kernel", "blocks"),
        "Rate of the kernel over its blocks; enough for 95 % of the best",
        limit=limit,
        ends=[(f"{format_bytes(cell.bytes)} {TOWARDS[cell.direction]}", f"{cell.blocks} blocks") for cell in enough],
    )
