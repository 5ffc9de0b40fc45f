"""What an overlap run looks like: how much each recipe hides, what it costs, and its kernels and copies over time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import plotly.graph_objects as go

from pinscope.analysis.cells import LineStyle
from pinscope.analysis.read_rows import Row, grouped
from pinscope.analysis.texts import part_words
from pinscope.charts import plot
from pinscope.charts.bars import category_rows
from pinscope.charts.chart import Chart, alt_text
from pinscope.charts.lines import put
from pinscope.charts.plot import Length, Scale, Spot, TimePart
from pinscope.charts.theme import COLOURS, DASHES, DIRECTION_TITLES, PANEL_PIXELS, SYMBOLS, ink, panels, words
from pinscope.experiments.overlap.findings import SLOWER_COPIES
from pinscope.experiments.overlap.reading import Cell, Passes, Span, spans
from pinscope.experiments.overlap.ways import EVERYTHING, FULL_DEPTH, WAYS, Recipe
from pinscope.records.run import ExperimentRun, LabKind
from pinscope.units import format_bandwidth, format_seconds, format_share

BALANCES: Mapping[str, str] = {
    "balanced": "a kernel takes as long as a pinned copy",
    "copy_bound": "a kernel takes half as long as a pinned copy",
    "compute_bound": "a kernel takes twice as long as a pinned copy",
}
"""Balance → what it means, in the order in which panels and single charts prefer them."""
TIMELINE_CHUNKS = 8
"""Chunks that a timeline shows; more would be thinner than a pixel on a phone."""
_CLOCKS: Mapping[LabKind, str] = {"cuda": "by device events", "host": "by the clock of the host model (no GPU)"}
_LANE_PIXELS, _TIMELINE_GAP = 52, 40
_INTACT = TimePart("data intact", "intact")
_CORRUPTED = TimePart("✕ unsafe: data corrupted", "corrupted", "x")
_STALL, _ISSUE = TimePart("compute stall", "stall"), TimePart("issue time", "issue")
_CROSS = LineStyle("corrupted", SYMBOLS["corrupted"], size=9)
_MILLISECONDS = Scale("Time of a pass (ms)", 1e-3, format_seconds)
_HIDDEN = Scale("Overlap (% hidden)", 0.01, format_share)
_THROUGHPUT = Scale("Throughput (GB/s)", 1e9, format_bandwidth)
_LONGER = 0.01
"""Share of the shorter side by which a pass must take longer than in turn to say so: less is noise."""


def draw(run: ExperimentRun, passes: Passes) -> Iterator[Chart]:
    """The charts for which something was measured, each drawn when it is taken."""
    kept = spans(passes.rows)
    recipes = left_out_once(cell.recipe for cell in passes.cells)
    few = [cell for recipe in recipes for cell in passes.cells if cell.recipe == recipe]
    chosen = {way: cells for way in ("h2d", "d2h") if (cells := [cell for cell in few if cell.direction == way])}
    if chosen:
        yield _passes(chosen)
    for way, cells in chosen.items():
        yield _efficiency(way, cells)
        yield _costs(way, cells)
        yield from _timeline(run, way, [span for span in kept if span.direction == way], cells)
    yield from _depths(passes.cells)


def draw_small(run: ExperimentRun, rows: Sequence[Row]) -> Chart | None:
    """How long the pipeline takes with all four parts, and without one of them; ``None`` without a pass of each."""
    passes = Passes(run, rows)
    full = next(iter(passes.full), None)
    missing = passes.dearest(full) if full else []
    if full is None or not missing or run.lab != "cuda":
        return None
    times = {"all four parts": full.seconds} | {WAYS[lack.missing].title: lack.cell.seconds for lack in missing}
    title = f"Pipeline of {full.direction} copies and kernels"
    bars = [Length(name, seconds, _memory(name)) for name, seconds in times.items()]
    return plot.lengths("small", title, "", {"": bars}, Scale("Time (ms)", 1e-3, format_seconds), title)


def _memory(name: str) -> TimePart:
    return TimePart("", "pageable" if name == WAYS["pinned memory"].title else "pinned")


def left_out_once(recipes: Iterable[Recipe]) -> list[Recipe]:
    """The full recipe and those that lack one ingredient, full recipe first.

    Where several ring depths give double buffering, the smallest stands for them.
    """
    few = sorted({recipe for recipe in recipes if len(recipe.missing) <= 1}, key=lambda recipe: recipe.depth)
    first = {missing: same[0] for missing, same in grouped(few, lambda recipe: recipe.missing).items()}
    return [first[missing] for missing in ((), *((name,) for name in WAYS)) if missing in first]


def _of_one_balance(cells: Sequence[Any]) -> tuple[list[Any], str]:
    """Cells or spans of the balance that charts of a single one show, and what it means."""
    balance = min((cell.balance for cell in cells), key=list(BALANCES).index)
    return [cell for cell in cells if cell.balance == balance], f"{words(balance)} ({BALANCES[balance]})"


def _unsafe(cell: Cell) -> str:
    """What stands beside an unsafe combination; empty for a safe one."""
    return f"{cell.corrupted_chunks:,} of {cell.checked_chunks:,} corrupted" if cell.corrupted_chunks else ""


def _name(recipe: Recipe) -> str:
    return recipe.label.replace("full recipe", "all four parts")


def _bar(cell: Cell, value: float, end: str, *more: str) -> Length:
    said = ", ".join(filter(None, (*more, _unsafe(cell))))
    return Length(_name(cell.recipe), value, _CORRUPTED if cell.corrupted_chunks else _INTACT, end, said)


def _pace(cell: Cell) -> str:
    return format_bandwidth(cell.bytes_per_second)


def _passes(chosen: Mapping[str, Sequence[Cell]]) -> Chart:
    """How long a pass takes with all ingredients and without each: what the verdict speaks of."""
    cells, balance = _of_one_balance([cell for way in chosen.values() for cell in way])
    panes = {
        DIRECTION_TITLES[way]: [
            _bar(cell, cell.seconds, _beside_full(cell, group), format_seconds(cell.seconds), _pace(cell))
            for cell in group
        ]
        for way, group in grouped(cells, lambda cell: str(cell.direction)).items()
    }
    return plot.lengths(
        "overlap-passes",
        "How long the pipeline takes without each part",
        f"Medians of one pass of {cells[0].chunks} chunks, {balance}. All four parts: {EVERYTHING}. "
        "What corrupts data is worth nothing, however short its bar.",
        panes,
        _MILLISECONDS,
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


def _efficiency(way: str, chosen: Sequence[Cell]) -> Chart:
    groups = grouped(chosen, lambda cell: cell.balance)
    panes = {
        words(balance).capitalize(): [
            _bar(
                cell,
                cell.possible_overlap_share,
                _hidden(cell),
                f"{_hidden(cell)}, {format_seconds(cell.seconds)} a pass",
                _pace(cell),
                f"against its own copies {part_words(cell.own_overlap)} is hidden",
            )
            for cell in groups[balance]
        ]
        for balance in BALANCES
        if balance in groups
    }
    meanings = "; ".join(f"{words(balance)}: {BALANCES[balance]}" for balance in BALANCES if balance in groups)
    return plot.lengths(
        f"overlap-{way}",
        f"How much of the copies hides behind kernels, {DIRECTION_TITLES[way].lower()}",
        "Against pinned copies and kernels one after the other. 100 %: the shorter side costs no time of its own. "
        "0 %: nothing is gained; where it takes longer still, the text says so. Where copies take longer by "
        "themselves, it says that, and what of the shorter side they hide. What corrupts data is worth nothing, "
        f"however long its bar. {meanings.capitalize()}.",
        panes,
        _HIDDEN,
        "Share hidden",
    )


def _hidden(cell: Cell) -> str:
    if cell.copy_slowdown >= SLOWER_COPIES:
        own = f"copies {cell.copy_slowdown:.1f} × as long, {part_words(cell.own_overlap)} hidden"
    elif cell.overlap <= -_LONGER:
        own = "none: slower than in turn"
    else:
        own = part_words(cell.overlap)
    return f"{own} ✕ unsafe" if cell.corrupted_chunks else own


def _costs(way: str, chosen: Sequence[Cell]) -> Chart:
    """What the GPU and the CPU lose in one pass."""
    cells, balance = _of_one_balance(chosen)

    panes = {
        "Compute stall: GPU idle": [_lost(cell, _STALL, cell.stall_seconds.median) for cell in cells],
        "Issue time: CPU held": [_lost(cell, _ISSUE, cell.issue_seconds.median) for cell in cells],
    }
    return plot.lengths(
        f"costs-{way}",
        f"What the GPU and the CPU lose, {DIRECTION_TITLES[way].lower()}",
        f"Medians of one pass of {cells[0].chunks} chunks, {balance}. Stall: compute idle between the "
        "first and the last kernel. Issue: all calls that start copies. The share is that of the whole pass.",
        panes,
        Scale("Time in one pass (ms)", 1e-3, format_seconds),
        "Lost in a pass",
        same_axis=False,
    )


def _lost(cell: Cell, look: TimePart, seconds: float) -> Length:
    end = f"{format_seconds(seconds)}, {format_share(seconds / cell.seconds)}"
    return Length(_name(cell.recipe), seconds, look, end, f"{end} of the pass")


def _timeline(run: ExperimentRun, way: str, kept: Sequence[Span], chosen: Sequence[Cell]) -> Iterator[Chart]:
    drawn = [span for span in kept if span.chunk < TIMELINE_CHUNKS]  # a damaged run may lack them
    if not drawn:
        return
    first, balance = _of_one_balance(drawn)
    unsafe = {cell.recipe: _unsafe(cell) for cell in chosen if cell.balance == first[0].balance}
    lanes = grouped(first, lambda span: span.recipe)
    lanes = {recipe: lanes[recipe] for recipe in left_out_once(lanes)}
    titles = [recipe.label + (f"<br>✕ unsafe: {unsafe[recipe]}" if unsafe.get(recipe) else "") for recipe in lanes]
    figure = panels(titles, [_LANE_PIXELS] * len(lanes), gap=_TIMELINE_GAP)
    for row, own in enumerate(lanes.values(), start=1):
        put(figure, row, *_lanes(own))
        category_rows(figure, row, ["copy", "compute"])
    figure.update_layout(barmode="overlay", bargap=0.1, hovermode="closest")
    figure.update_xaxes(rangemode="tozero")
    figure.update_xaxes(title_text="Time since the pass began (ms)", row=len(lanes), col=1)
    ends = [(recipe.label, format_seconds(max(span.end_seconds for span in own))) for recipe, own in lanes.items()]
    yield Chart(
        f"timeline-{way}",
        f"Kernels and copies over time, {DIRECTION_TITLES[way].lower()}",
        f"The first {TIMELINE_CHUNKS} chunks of one measured pass of each recipe, {balance}, {_CLOCKS[run.lab]}; "
        "numbers are chunks. The Perfetto export has every chunk, in each balance.",
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


def _depths(measured: Sequence[Cell]) -> Iterator[Chart]:
    """Throughput over the ring depth, for recipes that lack nothing else or one thing."""
    if not measured:
        return
    cells, balance = _of_one_balance(sorted(measured, key=lambda cell: cell.recipe.depth))

    def others(cell: Cell) -> tuple[str, ...]:
        return tuple(name for name in cell.recipe.missing if name != "double buffering")

    groups = grouped((cell for cell in cells if len(others(cell)) <= 1), lambda cell: (cell.direction, *others(cell)))
    several = {labels: curve for labels, curve in groups.items() if len(curve) > 1}
    # Leaving one ingredient out gives two depths of the full recipe only, which the bars show already.
    if any(len(curve) > FULL_DEPTH for curve in several.values()):
        panes: dict[str, dict[str, plot.Curve]] = {}
        for way, title in DIRECTION_TITLES.items():
            for (_, *lacking), curve in ((labels, curve) for labels, curve in several.items() if labels[0] == way):
                name = WAYS[lacking[0]].title if lacking else "nothing else missing"
                panes.setdefault(title, {})[name] = _throughput(curve, bool(lacking))
                if wrong := [cell for cell in curve if cell.corrupted_chunks]:
                    crosses = plot.Curve(_CROSS, [_spot(cell) for cell in wrong], mode="markers")
                    panes[title][f"{name}, data corrupted"] = crosses
        yield plot.curves(
            "depths",
            "Throughput over the depth of the ring",
            f"Bytes of a pass over its median time, {balance}. Crosses mark combinations that corrupted data.",
            panes,
            _THROUGHPUT,
            plot.counts("Ring depth in device buffers", "device buffers"),
            "Throughput at the deepest ring",
            pixels=PANEL_PIXELS,
        )


def _throughput(curve: Sequence[Cell], lacks_more: bool) -> plot.Curve:
    """Colour tells the host memory; a marker of its own tells that something is missing."""
    memory = curve[0].recipe.memory
    symbol = "square-open" if lacks_more and memory == "pinned" else SYMBOLS[memory]
    style = LineStyle(memory, symbol, DASHES[curve[0].direction], 9)
    return plot.Curve(style, [_spot(cell) for cell in curve])


def _spot(cell: Cell) -> Spot:
    return Spot(cell.recipe.depth, cell.bytes_per_second, f"ring of {cell.recipe.depth}", after=f" {_unsafe(cell)}")
