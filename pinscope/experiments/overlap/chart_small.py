"""Overlap in a few bars: what a card has room for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pinscope.charts.bars import Part, bars
from pinscope.charts.chart import Chart, alt_text
from pinscope.experiments.overlap.arithmetic import balanced, full_recipe, lacks, passes
from pinscope.records.run import ExperimentRun
from pinscope.units import format_seconds


def draw_small(run: ExperimentRun, rows: Sequence[Mapping[str, Any]]) -> Chart | None:
    """How long the pipeline takes with all four parts, and without one of them; ``None`` without a pass of each."""
    measured = passes(rows)
    full = next(iter(full_recipe(balanced(measured))), None)
    missing = sorted((lack for lack in lacks(measured) if lack.full is full), key=lambda lack: -lack.ratio)
    if full is None or not missing or run.lab != "cuda":
        return None
    times = {"all four parts": full.device_seconds.median}
    times |= {f"no {lack.missing}": lack.cell.device_seconds.median for lack in missing}
    words = {name: format_seconds(seconds) for name, seconds in times.items()}
    title = f"Pipeline of {full.direction} copies and kernels"
    colours = {name: "pageable" if name == "no pinned memory" else "pinned" for name in times}
    parts = [
        Part(f"{colour} memory", colour, {name: times[name] for name in times if colours[name] == colour})
        for colour in ("pinned", "pageable")
    ]
    figure = bars(list(times), parts, "Time (ms)", format_seconds, scale=1e-3, ends=words)
    return Chart("small", title, "", figure.update_layout(showlegend=False), alt_text(title, words.items()))
