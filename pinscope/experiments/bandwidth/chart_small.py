"""Bandwidth in a few bars: what a card has room for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pinscope.charts.bars import Part, bars
from pinscope.charts.chart import Chart, alt_text
from pinscope.experiments.bandwidth.arithmetic import Cell, by_line, cells, gain
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bandwidth, format_bytes

_KINDS = ("pinned", "pageable")


def draw_small(run: ExperimentRun, rows: Sequence[Mapping[str, Any]]) -> Chart | None:
    """Pinned beside pageable copies, both ways; ``None`` where they cannot be compared."""
    alone = {line: curve for line, curve in by_line(cells(rows)).items() if line.device == run.device}
    found = [gained for way in ("h2d", "d2h") if (gained := gain(alone, way))]
    shown: list[Cell] = [cell for gained in found for cell in (gained.pinned, gained.pageable)]
    if not shown:
        return None
    rates = {f"{cell.line.memory} {cell.line.direction}": cell.bytes_per_second for cell in shown}
    parts = [Part(kind, kind, {name: rates[name] for name in rates if name.startswith(kind)}) for kind in _KINDS]
    words = {name: format_bandwidth(rate) for name, rate in rates.items()}
    title = f"Copies of {format_bytes(shown[0].bytes)}"
    figure = bars(list(rates), parts, "Bandwidth (GB/s)", format_bandwidth, scale=1e9, ends=words)
    return Chart("small", title, "", figure.update_layout(showlegend=False), alt_text(title, words.items()))
