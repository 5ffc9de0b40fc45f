"""A GPU's pinned copies against those of another GPU of the same model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pinscope.analysis.link_findings import SLOT_SETTINGS, link_evidence
from pinscope.analysis.rules.link import BELOW_LIKE
from pinscope.experiments.bandwidth.arithmetic import Cell, by_line, cells, curve_of
from pinscope.experiments.bandwidth.findings import LARGE
from pinscope.records.finding import Finding, costing, finding, quantity
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bandwidth, format_share

Rows = Sequence[Mapping[str, Any]]


def below_like(run: ExperimentRun, rows: Rows, like: ExperimentRun, like_rows: Rows, name: str) -> Finding | None:
    """The direction in which the GPU falls farthest behind another of its model; ``None`` if it does not.

    Args:
        run, rows: a bandwidth run of the GPU.
        like, like_rows: one of the other GPU.
        name: of the other GPU, as a sentence names it.
    """
    own, best = _largest(run, rows), _largest(like, like_rows)
    behind = {way: cell.bytes_per_second / best[way].bytes_per_second for way, cell in own.items() if way in best}
    way = min(behind, key=behind.__getitem__, default="")
    if not way or behind[way] >= BELOW_LIKE:
        return None
    rate, like_rate = own[way].bytes_per_second, best[way].bytes_per_second
    link = run.gpu.link if run.gpu else None
    return finding(
        costing(1 / behind[way]),
        "below-its-like",
        quantity(f"Pinned {way}", rate, "bytes/second"),
        quantity(f"Pinned {way}, {name}", like_rate, "bytes/second"),
        *(link_evidence(link) if link else ()),
        title=f"GPU {run.device} copies at {format_bandwidth(rate)} ({way}, pinned), {name} at "
        f"{format_bandwidth(like_rate)}",
        detail=f"It reaches {format_share(behind[way])} of what a GPU of its model reaches. Its slot, the link's "
        "generation and lanes, and the NUMA node of the memory decide that.",
        advice=SLOT_SETTINGS,
    )


def _largest(run: ExperimentRun, rows: Rows) -> dict[str, Cell]:
    """Direction → the largest copies of pinned memory by the run's own GPU, where the data decides their time."""
    curves = {line: curve for line, curve in by_line(cells(rows)).items() if line.device == run.device}
    largest = {way: curve[-1] for way in ("h2d", "d2h") if (curve := curve_of(curves, "pinned", way))}
    return {way: cell for way, cell in largest.items() if cell.bytes >= LARGE}
