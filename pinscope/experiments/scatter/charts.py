"""What a run of many small copies looks like: rate over the size of a piece and over the kernel's blocks; who waits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pinscope.analysis.link_model import link_limit
from pinscope.analysis.rows import grouped
from pinscope.analysis.ways import LineStyle
from pinscope.charts.bars import Part, bars
from pinscope.charts.chart import Chart, alt_text
from pinscope.charts.lines import line, put, reference
from pinscope.charts.theme import DIRECTION_TITLES, panels, size_axis
from pinscope.experiments.scatter.arithmetic import WAY_TITLES, Beside, Cell, beside, by_case, by_way, cells
from pinscope.experiments.scatter.verdict import first_case
from pinscope.experiments.scatter.words import BY_WAY, TOWARDS, pieces_words
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bandwidth, format_bytes, format_seconds, format_share

_LOOKS: Mapping[str, LineStyle] = {
    "contiguous": LineStyle("copy", "circle-open", "dash"),
    "loop": LineStyle("pageable", "diamond"),
    "batch": LineStyle("pinned"),
    "graph": LineStyle("touch", "square-open", "dash"),
    "copy_2d": LineStyle("intact", "square"),
    "kernel": LineStyle("mapped", "triangle-up"),
    "cpu": LineStyle("workers", "star"),
    "managed": LineStyle("managed", "pentagon"),
}
_RATE = "Rate (GB/s)"
_BLOCK_LOOKS = (
    LineStyle("mapped", "triangle-up"),
    LineStyle("pinned"),
    LineStyle("issue", "square"),
    LineStyle("compute", "diamond"),
)


def draw(run: ExperimentRun, rows: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """The charts of a run, also of one that still goes on."""
    found = cells(rows)
    if not found:
        return []
    limit = link_limit(run)
    return [*_rates(found, limit), *_blocks(found, limit), *_held(found), *_compute(beside(rows))]


def _dotted(limit: float | None) -> str:
    return "" if limit is None else f" Dotted: the most that the link can carry, {format_bandwidth(limit)}."


def _rates(found: Sequence[Cell], limit: float | None) -> Iterator[Chart]:
    """A chart for each layout: every way over the size of a piece, a panel for each direction."""
    for layout, own in grouped(found, lambda cell: cell.layout).items():
        sizes = sorted({cell.bytes for cell in own})
        best = [cell for group in by_case(own).values() for cell in by_way(group).values()]
        panes = grouped(best, lambda cell: cell.direction)
        figure = panels([DIRECTION_TITLES[direction] for direction in panes], [240] * len(panes))
        for row, pane in enumerate(panes.values(), start=1):
            for way, curve in grouped(pane, lambda cell: cell.way).items():
                put(figure, row, line(WAY_TITLES[way], _LOOKS[way], [_point(cell) for cell in curve]))
            if limit is not None:
                ends = [sizes[0], sizes[-1]]
                put(figure, row, reference("link limit", ends, [limit / 1e9] * 2, f", {format_bandwidth(limit)}"))
            figure.update_yaxes(title_text=_RATE, rangemode="tozero", row=row, col=1)
        size_axis(figure, sizes, "Size of a piece (bytes, log scale)")
        least = [cell for cell in best if cell.bytes == sizes[0]]
        yield Chart(
            f"scatter-{layout}",
            f"Rate by the size of a piece, {layout}",
            "From the first call until all pieces are in place. Of the kernel and the CPU: the fewest blocks or "
            f"threads that nearly reach their best.{_dotted(limit)}",
            figure,
            alt_text(
                f"Rate over the size of a piece, {layout}; at {format_bytes(sizes[0])}",
                ((f"{WAY_TITLES[cell.way]} {TOWARDS[cell.direction]}", format_bandwidth(cell.rate)) for cell in least),
            ),
        )


def _point(cell: Cell) -> tuple[float, float, str]:
    many = f", {cell.blocks} blocks" if cell.blocks else f", {cell.threads} threads" if cell.threads else ""
    text = f"{format_bytes(cell.bytes)}{many}: {format_bandwidth(cell.rate)}"
    return cell.bytes, cell.rate / 1e9, text


def _blocks(found: Sequence[Cell], limit: float | None) -> Iterator[Chart]:
    """The kernel's rate over its blocks, for sizes of the first layout."""
    layout = found[0].layout
    kernels = [cell for cell in found if cell.way == "kernel" and cell.layout == layout]
    counts = sorted({cell.blocks or 0 for cell in kernels})
    if len(counts) < 2:
        return
    sizes = sorted({cell.bytes for cell in kernels})
    shown = dict(zip(dict.fromkeys((sizes[0], sizes[len(sizes) // 2], sizes[-1])), _BLOCK_LOOKS, strict=False))
    panes = grouped([cell for cell in kernels if cell.bytes in shown], lambda cell: cell.direction)
    figure = panels([DIRECTION_TITLES[direction] for direction in panes])
    for row, pane in enumerate(panes.values(), start=1):
        curves = grouped(pane, lambda cell: cell.bytes)
        for size, curve in curves.items():
            points = [
                (cell.blocks or 0, cell.rate / 1e9, f"{cell.blocks} blocks: {format_bandwidth(cell.rate)}")
                for cell in curve
            ]
            put(figure, row, line(f"pieces of {format_bytes(size)}", shown[size], points))
        if limit is not None:
            ends = [counts[0], counts[-1]]
            put(figure, row, reference("link limit", ends, [limit / 1e9] * 2, f", {format_bandwidth(limit)}"))
        figure.update_yaxes(title_text=_RATE, rangemode="tozero", row=row, col=1)
    figure.update_xaxes(
        type="log",
        tickmode="array",
        tickvals=counts,
        ticktext=[str(count) for count in counts],
        unifiedhovertitle_text="%{x} blocks",
    )
    figure.update_xaxes(title_text="Blocks of the kernel (count, log scale)", row=len(panes), col=1)
    enough = [by_way(group)["kernel"] for group in by_case(kernels).values()]
    yield Chart(
        "scatter-blocks",
        "How many multiprocessors the kernel needs",
        f"Each block of 512 threads takes one, as long as there are others; {layout} pieces.{_dotted(limit)}",
        figure,
        alt_text(
            "Rate of the kernel over its blocks; enough for 95 % of the best",
            ((f"{format_bytes(cell.bytes)} {TOWARDS[cell.direction]}", f"{cell.blocks} blocks") for cell in enough),
        ),
    )


def _held(found: Sequence[Cell]) -> Iterator[Chart]:
    """Of the smallest pieces: how long each way takes, and for how much of it the program's thread is held."""
    cells_of_ways = [cell for cell in by_way(first_case(found)).values() if cell.way != "managed"]
    if len(cells_of_ways) < 2:
        return
    order = sorted(cells_of_ways, key=lambda cell: -cell.wall.median)
    held = {WAY_TITLES[cell.way]: cell.held * cell.wall.median for cell in order}
    free = {WAY_TITLES[cell.way]: (1 - cell.held) * cell.wall.median for cell in order}
    ends = {
        WAY_TITLES[cell.way]: f"{format_seconds(cell.wall.median)}, {format_share(cell.held)} held" for cell in order
    }
    figure = bars(
        list(held),
        [Part("thread held", "issue", held), Part("thread free", "copy", free)],
        "Time (ms)",
        format_seconds,
        scale=1e-3,
        ends=ends,
    )
    first = order[0]
    yield Chart(
        "scatter-held",
        "How long calls hold the program's thread",
        f"{pieces_words(first)} {TOWARDS[first.direction]}: until all are in place. Held: calls, and copying of its "
        "own.",
        figure,
        alt_text("Time of each way, and the part for which it holds the thread", ends.items()),
    )


def _compute(loads: Sequence[Beside]) -> Iterator[Chart]:
    """How much longer a compute load takes beside the kernel, and beside the batch."""
    if not loads:
        return
    longer = {_load_words(one): max(one.slower.median, 0.0) for one in loads}
    ends = {
        _load_words(one): f"{format_share(longer[_load_words(one)])}, {format_bandwidth(one.rate)}" for one in loads
    }
    figure = bars(
        list(longer),
        [Part("compute takes longer", "compute", longer)],
        "Longer than alone (%)",
        format_share,
        scale=0.01,
        ends=ends,
    )
    yield Chart(
        "scatter-compute",
        "What it costs compute beside it",
        f"How much longer a load on all multiprocessors takes while pieces of {format_bytes(loads[0].bytes)} move; "
        "then how fast these move meanwhile.",
        figure.update_layout(showlegend=False),
        alt_text("How much longer compute takes, and what is moved meanwhile", ends.items()),
    )


def _load_words(one: Beside) -> str:
    mover = f"kernel of {one.blocks} blocks" if one.way == "kernel" else BY_WAY[one.way]
    return f"{mover} {TOWARDS[one.direction]}"
