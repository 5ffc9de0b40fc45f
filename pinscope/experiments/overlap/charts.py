"""What an overlap run looks like: how much each recipe hides, what it costs, and its kernels and copies over time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import plotly.graph_objects as go

from pinscope.analysis.conclusions import part_words, possible_share
from pinscope.analysis.rows import grouped
from pinscope.analysis.ways import LineStyle
from pinscope.charts.bars import ROW_PIXELS, THICKNESS, category_rows, end_labels, names_above
from pinscope.charts.chart import Chart, alt_text
from pinscope.charts.lines import line, put
from pinscope.charts.theme import COLOURS, DASHES, DIRECTION_TITLES, SYMBOLS, ink, panels, words
from pinscope.experiments.overlap.arithmetic import FULL_DEPTH, PassCell, Recipe, Span, passes, spans
from pinscope.experiments.overlap.findings import EVERYTHING, SLOWER_COPIES
from pinscope.records.run import ExperimentRun, LabKind
from pinscope.units import format_bandwidth, format_seconds, format_share

BALANCES: Mapping[str, str] = {
    "balanced": "a kernel takes as long as a pinned copy",
    "copy_bound": "a kernel takes half as long as a pinned copy",
    "compute_bound": "a kernel takes twice as long as a pinned copy",
}
"""Balance → what it means, in the order in which panels and single charts prefer them."""

_CLOCKS: Mapping[LabKind, str] = {"cuda": "by device events", "host": "by the clock of the host model (no GPU)"}
TIMELINE_CHUNKS = 8
"""Chunks that a timeline shows; more would be thinner than a pixel on a phone."""
INGREDIENTS = Recipe("pageable", separate_stream=False, depth=1, events=False).missing
"""The ingredients of the recipe, in its order."""
_ROW_PIXELS = 36
_LANE_PIXELS = 52
_TIMELINE_GAP = 40
_VERDICTS: Mapping[str, str] = {"intact": "data intact", "corrupted": "✕ unsafe: data corrupted"}
_INSIDE = 50.0
"""Per cent from which a bar is long enough for its own text, also on a phone."""
_LONGER = 0.01
"""Share of the shorter side by which a pass must take longer than in turn to say so: less is noise."""


def draw(run: ExperimentRun, observations: Sequence[Mapping[str, Any]]) -> Iterator[Chart]:
    """The charts of an overlap run, each drawn when it is taken.

    Args:
        run: tells the lab, whose clock the times are of.
        observations: stored rows of the run, also of one that is still going.

    Yields:
        Only the charts for which something was measured; none for a run without rows.
    """
    yield from filter(None, _drawings(run, observations))


def _drawings(run: ExperimentRun, observations: Sequence[Mapping[str, Any]]) -> Iterator[Chart | None]:
    measured, kept = passes(observations), spans(observations)
    yield _passes(measured)
    for way in ("h2d", "d2h"):
        cells = [cell for cell in measured if cell.direction == way]
        recipes = left_out_once(cell.recipe for cell in cells)
        chosen = [cell for recipe in recipes for cell in cells if cell.recipe == recipe]
        timeline = [span for span in kept if span.direction == way and span.recipe in recipes]
        yield _efficiency(way, chosen)
        yield _costs(way, chosen)
        yield _timeline(run, way, timeline, chosen)
    yield _depths(measured)


def left_out_once(recipes: Iterable[Recipe]) -> list[Recipe]:
    """The full recipe and those that lack one ingredient, full recipe first.

    Where several ring depths give double buffering, the smallest stands for them.
    """
    few = {recipe for recipe in recipes if len(recipe.missing) <= 1}
    chosen: dict[tuple[str, ...], Recipe] = {}
    for recipe in sorted(few, key=lambda recipe: recipe.depth):
        chosen.setdefault(recipe.missing, recipe)
    return sorted(chosen.values(), key=lambda recipe: [INGREDIENTS.index(name) for name in recipe.missing])


def _way(way: str) -> str:
    return DIRECTION_TITLES[way].lower()


def _balance(found: Sequence[PassCell | Span]) -> str:
    """The balance that charts of a single one show."""
    return min((item.balance for item in found), key=list(BALANCES).index)


def _balance_words(balance: str) -> str:
    """A balance in a caption, with what it means."""
    return f"{words(balance)} ({BALANCES[balance]})"


def _verdict(cell: PassCell) -> str:
    """``corrupted`` or ``intact``: the key of colour and words."""
    return "corrupted" if cell.corrupted_chunks else "intact"


def _unsafe(cell: PassCell) -> str:
    """What stands beside an unsafe combination; empty for a safe one."""
    return f"{cell.corrupted_chunks:,} of {cell.checked_chunks:,} corrupted" if cell.corrupted_chunks else ""


def _name(recipe: Recipe) -> str:
    """A recipe on a category axis, in short lines."""
    label = recipe.label.replace(", ring of", ",<br>ring of").replace("full recipe", "all four parts")
    return label.replace("no separate copy", "no separate<br>copy").replace("no double ", "no double<br>")


def _marked(cell: PassCell) -> str:
    """The same with a cross where it corrupted data."""
    return _name(cell.recipe) + ("<br>✕ unsafe" if cell.corrupted_chunks else "")


def _passes(measured: Sequence[PassCell]) -> Chart | None:
    """How long a pass takes with all ingredients and without each: what the verdict speaks of."""
    recipes = left_out_once(cell.recipe for cell in measured)
    if not recipes:
        return None
    balance = _balance(measured)
    cells = [cell for recipe in recipes for cell in measured if (cell.recipe, cell.balance) == (recipe, balance)]
    ways = [way for way in ("h2d", "d2h") if any(cell.direction == way for cell in cells)]
    groups = [[cell for cell in cells if cell.direction == way] for way in ways]
    figure = panels([DIRECTION_TITLES[way] for way in ways], [ROW_PIXELS * len(group) for group in groups])
    words_of: dict[str, str] = {}
    for row, group in enumerate(groups, start=1):
        for verdict, name in _VERDICTS.items():
            if members := [cell for cell in group if _verdict(cell) == verdict]:
                put(figure, row, _time_bars(name, verdict, members))
        names_above(figure, row, [_name(cell.recipe) for cell in group])
        full = next((cell for cell in group if not cell.recipe.missing), None)
        ends = {_name(cell.recipe): (cell.device_seconds.median * 1e3, _beside_full(cell, full)) for cell in group}
        end_labels(figure, row, ends)
        words_of |= {f"{group[0].direction}, {name}": words for name, (_, words) in ends.items()}
    figure.update_layout(hovermode="y unified")
    figure.update_xaxes(title_text="Time of a pass (ms)", row=len(ways), col=1)
    return Chart(
        "overlap-passes",
        "How long the pipeline takes without each part",
        f"Medians of one pass of {cells[0].chunks} chunks, {_balance_words(balance)}. All four parts: {EVERYTHING}. "
        "What corrupts data is worth nothing, however short its bar.",
        figure,
        alt_text("Time of a pass", words_of.items()),
    )


def _time_bars(name: str, verdict: str, members: Sequence[PassCell]) -> go.Bar:
    return go.Bar(
        orientation="h",
        y=[_name(cell.recipe) for cell in members],
        name=name,
        width=THICKNESS,
        x=[cell.device_seconds.median * 1e3 for cell in members],
        marker={
            "color": COLOURS[verdict],
            "pattern": {"shape": "x" if verdict == "corrupted" else "", "fillmode": "replace"},
        },
        customdata=[
            f"{format_seconds(cell.device_seconds.median)}, {format_bandwidth(cell.bytes_per_second)}"
            for cell in members
        ],
        hovertemplate="%{customdata}<extra></extra>",
    )


def _beside_full(cell: PassCell, full: PassCell | None) -> str:
    """A pass's time, and what is hidden in it, how much longer it takes than with all parts, or that data is wrong."""
    seconds = format_seconds(cell.device_seconds.median)
    if cell.corrupted_chunks:
        return f"✕ unsafe, {_unsafe(cell)}"
    if full is None or cell is full:
        return f"{seconds}, {part_words(cell.overlap)} hidden"
    return f"{seconds}, {cell.device_seconds.median / full.device_seconds.median:.1f} × as long"


def _efficiency(way: str, chosen: Sequence[PassCell]) -> Chart | None:
    shown = [balance for balance in BALANCES if any(cell.balance == balance for cell in chosen)]
    if not shown:
        return None
    groups = [[cell for cell in chosen if cell.balance == balance] for balance in shown]
    figure = panels([words(balance).capitalize() for balance in shown], [_ROW_PIXELS * len(group) for group in groups])
    for row, group in enumerate(groups, start=1):
        put(figure, row, *_efficiency_bars(group))
        if short := [cell for cell in group if cell.overlap * 100 < _INSIDE]:
            figure.add_trace(_beside(short), row=row, col=1)
        category_rows(figure, row, [_marked(cell) for cell in group])
    figure.update_layout(hovermode="y unified")
    figure.update_xaxes(range=[0, 104], zeroline=True, zerolinewidth=2)
    figure.update_xaxes(title_text="Overlap (% hidden)", row=len(shown), col=1)
    return Chart(
        f"overlap-{way}",
        f"How much of the copies hides behind kernels, {_way(way)}",
        "Against pinned copies and kernels one after the other. 100 %: the shorter side costs no time of its own. "
        "0 %: nothing is gained; where it takes longer still, the text says so. Where copies take longer by "
        "themselves, it says that, and what of the shorter side they hide. What corrupts data is worth nothing, "
        "however long its bar. "
        + "; ".join(f"{words(balance)}: {BALANCES[balance]}" for balance in shown).capitalize()
        + ".",
        figure,
        alt_text(
            "Share hidden", [(f"{words(cell.balance)}, {cell.recipe.label}", _overlap_words(cell)) for cell in chosen]
        ),
    )


def _efficiency_bars(group: Sequence[PassCell]) -> Iterator[go.Bar]:
    """Bars by verdict, with their text inside where they are long enough."""
    for verdict, name in _VERDICTS.items():
        if members := [cell for cell in group if _verdict(cell) == verdict]:
            yield go.Bar(
                orientation="h",
                y=[_marked(cell) for cell in members],
                x=[_shown(cell) * 100 for cell in members],
                text=[_overlap_words(cell) for cell in members],
                textangle=0,
                constraintext="none",
                textposition=["inside" if cell.overlap * 100 >= _INSIDE else "none" for cell in members],
                insidetextanchor="start",
                insidetextfont={"color": ink(COLOURS[verdict])},
                name=name,
                marker={"color": COLOURS[verdict]},
                customdata=[
                    f"{format_seconds(cell.device_seconds.median)} a pass, "
                    f"{format_bandwidth(cell.bytes_per_second)}<br>"
                    f"against its own copies {part_words(cell.own_overlap)} is hidden"
                    for cell in members
                ],
                hovertemplate="%{text}<br>%{customdata}<extra></extra>",
            )


def _beside(short: Sequence[PassCell]) -> go.Scatter:
    """The text of bars that are too short for it."""
    return go.Scatter(
        mode="text",
        y=[_marked(cell) for cell in short],
        x=[_shown(cell) * 100 + 1 for cell in short],
        text=[_overlap_words(cell) for cell in short],
        textposition="middle right",
        hoverinfo="skip",
        showlegend=False,
    )


def _shown(cell: PassCell) -> float:
    """The overlap as a bar: nothing is hidden by less than nothing, and noise hides no more than all."""
    return possible_share(cell.overlap)


def _overlap_words(cell: PassCell) -> str:
    if cell.copy_slowdown >= SLOWER_COPIES:
        own = f"copies {cell.copy_slowdown:.1f} × as long<br>{part_words(cell.own_overlap)} hidden"
    elif cell.overlap <= -_LONGER:
        own = "none: slower than in turn"
    else:
        own = part_words(cell.overlap)
    return "<br>".join(filter(None, (own, _unsafe(cell))))


def _costs(way: str, chosen: Sequence[PassCell]) -> Chart | None:
    """What the GPU and the CPU lose in one pass."""
    if not chosen:
        return None
    balance = _balance(chosen)
    group = [cell for cell in chosen if cell.balance == balance]
    figure = panels(["Compute stall: GPU idle", "Issue time: CPU held"], [_ROW_PIXELS * len(group)] * 2)
    figure.update_xaxes(matches=None)
    figure.update_layout(hovermode="y unified")
    kinds = (
        ("stall", "compute stall", [cell.stall_seconds for cell in group]),
        ("issue", "issue time", [cell.issue_seconds for cell in group]),
    )
    for row, (kind, name, summaries) in enumerate(kinds, start=1):
        milliseconds = [summary.median * 1e3 for summary in summaries]
        figure.add_trace(
            go.Bar(
                orientation="h",
                x=milliseconds,
                y=[_name(cell.recipe) for cell in group],
                name=name,
                text=[
                    f"{format_seconds(summary.median)}<br>{format_share(summary.median / cell.device_seconds.median)}"
                    for cell, summary in zip(group, summaries, strict=True)
                ],
                textposition="outside",
                cliponaxis=False,
                marker={"color": COLOURS[kind]},
                hovertemplate="%{text} of the pass<extra></extra>",
            ),
            row=row,
            col=1,
        )
        category_rows(figure, row, [_name(cell.recipe) for cell in group])
        # The longest bar leaves room for its own text.
        figure.update_xaxes(range=[0, max(milliseconds) * 1.5 or 1.0], row=row, col=1)
    figure.update_xaxes(title_text="Time in one pass (ms)", row=2, col=1)
    return Chart(
        f"costs-{way}",
        f"What the GPU and the CPU lose, {_way(way)}",
        f"Medians of one pass of {group[0].chunks} chunks, {_balance_words(balance)}. Stall: compute idle between the "
        "first and the last kernel. Issue: all calls that start copies. The share is that of the whole pass.",
        figure,
        alt_text(
            "Compute stall and issue time of a pass",
            [
                (
                    cell.recipe.label,
                    f"{format_seconds(cell.stall_seconds.median)} and {format_seconds(cell.issue_seconds.median)}",
                )
                for cell in group
            ],
        ),
    )


def _timeline(run: ExperimentRun, way: str, kept: Sequence[Span], chosen: Sequence[PassCell]) -> Chart | None:
    first = [span for span in kept if span.chunk < TIMELINE_CHUNKS]  # a damaged run may lack them
    balance = _balance(first) if first else ""
    recipes = left_out_once({span.recipe for span in first if span.balance == balance})
    if not recipes:
        return None
    verdicts = {cell.recipe: _unsafe(cell) for cell in chosen if cell.balance == balance}
    titles = [
        recipe.label + (f"<br>✕ unsafe: {verdicts[recipe]}" if verdicts.get(recipe) else "") for recipe in recipes
    ]
    figure = panels(titles, [_LANE_PIXELS] * len(recipes), gap=_TIMELINE_GAP)
    for row, recipe in enumerate(recipes, start=1):
        put(figure, row, *_lanes([span for span in first if (span.recipe, span.balance) == (recipe, balance)]))
        category_rows(figure, row, ["copy", "compute"])
    figure.update_layout(barmode="overlay", bargap=0.1, hovermode="closest")
    figure.update_xaxes(rangemode="tozero")
    figure.update_xaxes(title_text="Time since the pass began (ms)", row=len(recipes), col=1)
    return Chart(
        f"timeline-{way}",
        f"Kernels and copies over time, {_way(way)}",
        f"The first {TIMELINE_CHUNKS} chunks of one measured pass of each recipe, {_balance_words(balance)}, "
        f"{_CLOCKS[run.lab]}; numbers are chunks. The Perfetto export has every chunk, in each balance.",
        figure,
        alt_text(
            f"The first {TIMELINE_CHUNKS} copies and kernels end after",
            [
                (
                    recipe.label,
                    format_seconds(
                        max(span.end_seconds for span in first if (span.recipe, span.balance) == (recipe, balance))
                    ),
                )
                for recipe in recipes
            ],
        ),
    )


def _lanes(own: Sequence[Span]) -> Iterator[go.Bar]:
    """Bars of the copy lane, the compute lane, and the gaps in which compute stands idle."""
    for lane, name in (("copy", "copy"), ("compute", "kernel")):
        members = [span for span in own if span.lane == lane]
        starts, lengths = _milliseconds([(span.start_seconds, span.end_seconds) for span in members])
        yield go.Bar(
            orientation="h",
            y=[lane] * len(members),
            base=starts,
            x=lengths,
            name=name,
            marker={"color": COLOURS[lane], "line": {"width": 1, "color": "rgba(255, 255, 255, 0.7)"}},
            text=[str(span.chunk) for span in members],
            textposition="inside",
            insidetextanchor="middle",
            insidetextfont={"color": ink(COLOURS[lane]), "size": 11},
            textangle=0,
            customdata=[
                f"{format_seconds(span.end_seconds - span.start_seconds)} from {format_seconds(span.start_seconds)} on"
                for span in members
            ],
            hovertemplate=f"{name} of chunk %{{text}}: %{{customdata}}<extra></extra>",
        )
    kernels = sorted((span.start_seconds, span.end_seconds) for span in own if span.lane == "compute")
    gaps = [(before[1], after[0]) for before, after in pairwise(kernels) if after[0] > before[1]]
    if gaps:
        starts, lengths = _milliseconds(gaps)
        yield go.Bar(
            orientation="h",
            y=["compute"] * len(gaps),
            base=starts,
            x=lengths,
            width=0.15,
            name="compute stall",
            marker={"color": COLOURS["stall"]},
            customdata=[format_seconds(end - start) for start, end in gaps],
            hovertemplate="compute stall: %{customdata}<extra></extra>",
        )


def _milliseconds(pieces: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Starts and lengths in milliseconds."""
    return [start * 1e3 for start, _ in pieces], [(end - start) * 1e3 for start, end in pieces]


def _depths(measured: Sequence[PassCell]) -> Chart | None:
    """Throughput over the ring depth, for recipes that lack nothing else or one thing."""
    if not measured:
        return None
    balance = _balance(measured)

    def others(cell: PassCell) -> tuple[str, ...]:
        return tuple(name for name in cell.recipe.missing if name != "double buffering")

    chosen = [cell for cell in measured if cell.balance == balance and len(others(cell)) <= 1]
    groups = grouped(sorted(chosen, key=lambda cell: cell.recipe.depth), lambda cell: (cell.direction, others(cell)))
    curves = {key: curve for key, curve in groups.items() if len(curve) > 1}
    shown = [way for way in ("h2d", "d2h") if any(direction == way for direction, _ in curves)]
    # Leaving one ingredient out gives two depths of the full recipe only, which the bars show already.
    if not any(len(curve) > FULL_DEPTH for curve in curves.values()):
        return None
    figure = panels([DIRECTION_TITLES[way] for way in shown])
    for (way, missing), curve in curves.items():
        put(figure, shown.index(way) + 1, _depth_line(way, missing, curve))
    depths = sorted({cell.recipe.depth for curve in curves.values() for cell in curve})
    figure.update_xaxes(type="log", tickmode="array", tickvals=depths, ticktext=[str(depth) for depth in depths])
    figure.update_xaxes(title_text="Ring depth (device buffers)", row=len(shown), col=1)
    figure.update_yaxes(title_text="Throughput (GB/s)", rangemode="tozero")
    return Chart(
        "depths",
        "Throughput over the depth of the ring",
        f"Bytes of a pass over its median time, {_balance_words(balance)}. Crosses mark combinations that corrupted "
        "data.",
        figure,
        alt_text(
            "Throughput over the depth of the ring",
            [
                (
                    f"{way}, ring of {cell.recipe.depth}{f', no {missing[0]}' if missing else ''}",
                    format_bandwidth(cell.bytes_per_second),
                )
                for (way, missing), curve in curves.items()
                for cell in curve
            ],
        ),
    )


def _depth_line(way: str, others: tuple[str, ...], curve: Sequence[PassCell]) -> go.Scatter:
    """Colour tells the host memory; a marker of its own tells what is missing, a cross corrupted data."""
    memory = curve[0].recipe.memory
    plain = SYMBOLS[memory] if not others or memory == "pageable" else "square-open"
    points = [
        (
            cell.recipe.depth,
            cell.bytes_per_second / 1e9,
            f"{words(memory)}, ring of {cell.recipe.depth}: {format_bandwidth(cell.bytes_per_second)} "
            f"{_unsafe(cell)}".strip(),
        )
        for cell in curve
    ]
    made = line(
        f"no {others[0]}" if others else "nothing else missing", LineStyle(memory, dash=DASHES[way], size=9), points
    )
    wrong = [bool(cell.corrupted_chunks) for cell in curve]
    return made.update(
        marker={
            "symbol": [SYMBOLS["corrupted"] if bad else plain for bad in wrong],
            "color": [COLOURS["corrupted" if bad else memory] for bad in wrong],
        }
    )
