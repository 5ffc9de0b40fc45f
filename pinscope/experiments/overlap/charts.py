"""What an overlap run looks like: how much each recipe hides, what it costs, and its kernels and copies over time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import plotly.graph_objects as go

from pinscope.analysis.read_rows import grouped
from pinscope.analysis.texts import part_words
from pinscope.charts import plot
from pinscope.charts.marks import Chart, alt_text, category_rows, put
from pinscope.charts.plot import Bar, Scale, TimePart
from pinscope.charts.theme import COLOURS, DIRECTION_TITLES, ink, panels, words
from pinscope.experiments.overlap.reading import Cell, Passes, Span, of_one_balance, spans
from pinscope.experiments.overlap.ways import BALANCES, EVERYTHING
from pinscope.records.run import ExperimentRun, LabKind
from pinscope.units import format_bandwidth, format_seconds

TIMELINE_CHUNKS = 8
"""Chunks that a timeline shows; more would be thinner than a pixel on a phone."""
_CLOCKS: Mapping[LabKind, str] = {"cuda": "by device events", "host": "by the clock of the host model (no GPU)"}
_LANE_PIXELS, _TIMELINE_GAP = 52, 40
_INTACT = TimePart("data intact", "intact")
_CORRUPTED = TimePart("✕ unsafe: data corrupted", "corrupted", "x")


def draw(run: ExperimentRun, passes: Passes) -> Iterator[Chart]:
    """The charts for which something was measured, each drawn when it is taken."""
    kept = spans(passes.rows)
    simple = [cell for cell in passes.cells if cell.recipe.is_simple]
    if simple:
        yield _passes(of_one_balance(simple))
    for cells in grouped(simple, lambda cell: cell.direction).values():
        yield from _timeline(run, of_one_balance(cells), kept)


def _balance(cells: Sequence[Cell]) -> str:
    """``balanced (a kernel takes as long as a pinned copy)``, of cells of one balance."""
    return f"{words(cells[0].balance)} ({BALANCES[cells[0].balance][1]})"


def _unsafe(cell: Cell) -> str:
    """What stands beside an unsafe combination; empty for a safe one."""
    return f"{cell.corrupted_chunks:,} of {cell.checked_chunks:,} corrupted" if cell.corrupted_chunks else ""


def _bar(cell: Cell, beside: Sequence[Cell]) -> Bar:
    text = ", ".join(
        filter(None, (format_seconds(cell.seconds), format_bandwidth(cell.bytes_per_second), _unsafe(cell)))
    )
    name = cell.recipe.label.replace("full recipe", "all four parts")
    look = _CORRUPTED if cell.corrupted_chunks else _INTACT
    return Bar(name, cell.seconds, look, _beside_full(cell, beside), text)


def _passes(cells: Sequence[Cell]) -> Chart:
    """How long a pass takes with all ingredients and without each: what the verdict speaks of."""
    panes = {
        DIRECTION_TITLES[way]: [_bar(cell, group) for cell in group]
        for way, group in grouped(cells, lambda cell: cell.direction).items()
    }
    return plot.bars(
        "overlap-passes",
        "How long the pipeline takes without each part",
        f"Medians of one pass of {cells[0].chunks} chunks, {_balance(cells)}. All four parts: {EVERYTHING}. "
        "What corrupts data is worth nothing, however short its bar.",
        panes,
        Scale("Time of a pass (ms)", 1e-3, format_seconds),
        "Time of a pass",
    )


def _beside_full(cell: Cell, group: Sequence[Cell]) -> str:
    """A pass's time, and what is hidden in it, how much longer it takes than with all parts, or that data is wrong."""
    full = next((other for other in group if not other.recipe.missing), cell)
    if cell.corrupted_chunks:
        return f"✕ unsafe, {_unsafe(cell)}"
    if cell is full:
        return f"{format_seconds(cell.seconds)}, {part_words(cell.overlap)} hidden"
    return f"{format_seconds(cell.seconds)}, {cell.seconds / full.seconds:.1f} × as long"


def _timeline(run: ExperimentRun, cells: Sequence[Cell], kept: Sequence[Span]) -> Iterator[Chart]:
    first_chunks = grouped(
        (span for span in kept if span.chunk < TIMELINE_CHUNKS),
        lambda span: (span.direction, span.balance, span.recipe),
    )
    spans_of = {cell: first_chunks.get((cell.direction, cell.balance, cell.recipe), []) for cell in cells}
    drawn = [cell for cell in cells if spans_of[cell]]  # a damaged run may lack them
    if not drawn:
        return
    titles = [f"{cell.recipe.label}{f'<br>✕ unsafe: {_unsafe(cell)}' if _unsafe(cell) else ''}" for cell in drawn]
    figure = panels(titles, [_LANE_PIXELS] * len(drawn), gap=_TIMELINE_GAP)
    for row, cell in enumerate(drawn, start=1):
        put(figure, row, *_lanes(spans_of[cell]))
        category_rows(figure, row, ["copy", "compute"])
    figure.update_layout(barmode="overlay", bargap=0.1, hovermode="closest")
    figure.update_xaxes(rangemode="tozero")
    figure.update_xaxes(title_text="Time since the pass began (ms)", row=len(drawn), col=1)
    ends = [(cell.recipe.label, format_seconds(max(span.end_seconds for span in spans_of[cell]))) for cell in drawn]
    way = drawn[0].direction
    yield Chart(
        f"timeline-{way}",
        f"Kernels and copies over time, {DIRECTION_TITLES[way].lower()}",
        f"The first {TIMELINE_CHUNKS} chunks of one measured pass of each recipe, {_balance(drawn)}, "
        f"{_CLOCKS[run.lab]}; numbers are chunks. The Perfetto export has every chunk, in each balance.",
        figure,
        alt_text(f"The first {TIMELINE_CHUNKS} copies and kernels end after", ends),
    )


def _lanes(own: Sequence[Span]) -> Iterator[go.Bar]:
    """Bars of the copy lane, the compute lane, and the gaps in which compute stands idle."""
    for lane, name in (("copy", "copy"), ("compute", "kernel")):
        members = [span for span in own if span.lane == lane]
        yield _pieces(lane, name, lane, [(span.start_seconds, span.end_seconds) for span in members]).update(
            text=[str(span.chunk) for span in members],
            textposition="inside",
            insidetextanchor="middle",
            insidetextfont={"color": ink(COLOURS[lane]), "size": 11},
            textangle=0,
            marker_line={"width": 1, "color": "rgba(255, 255, 255, 0.7)"},
            hovertemplate=f"{name} of chunk %{{text}}: %{{customdata}}<extra></extra>",
        )
    kernels = sorted((span.start_seconds, span.end_seconds) for span in own if span.lane == "compute")
    gaps = [(before[1], after[0]) for before, after in pairwise(kernels) if after[0] > before[1]]
    if gaps:
        yield _pieces("compute", "compute stall", "stall", gaps).update(width=0.15)


def _pieces(lane: str, name: str, colour: str, pieces: Sequence[tuple[float, float]]) -> go.Bar:
    return go.Bar(
        orientation="h",
        y=[lane] * len(pieces),
        base=[start * 1e3 for start, _ in pieces],
        x=[(end - start) * 1e3 for start, end in pieces],
        name=name,
        marker={"color": COLOURS[colour]},
        customdata=[f"{format_seconds(end - start)} from {format_seconds(start)} on" for start, end in pieces],
        hovertemplate=f"{name}: %{{customdata}}<extra></extra>",
    )
