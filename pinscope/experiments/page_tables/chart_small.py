"""Page tables in a few bars: what a card has room for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pinscope.analysis.rows import grouped
from pinscope.charts.bars import Part, bars
from pinscope.charts.chart import Chart, alt_text
from pinscope.experiments.page_tables.arithmetic import GIB, costs, unreached
from pinscope.experiments.page_tables.charts import MIB, words
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bytes

MOST_BARS = 6
"""More ways than these are one bar a sort, where they take the same."""
SORTS: Mapping[str, str] = {
    "pinned": "allocated",
    "write_combined": "allocated",
    "registered": "registered",
    "portable": "registered",
    "created": "cuMemCreate",
    "created_pieces": "cuMemCreate",
}
"""Way to pin → what several of its sort are called together."""


def draw_small(run: ExperimentRun, rows: Sequence[Mapping[str, Any]]) -> Chart | None:
    """GPU memory that each pinned GiB takes, for each way to pin; ``None`` where no way shows it."""
    own = [cost for cost in costs(rows) if cost.way.device == run.device]
    taken = {cost: cost.growth.per_byte * GIB for cost in own if cost.growth.per_byte}
    if not taken:
        return None
    taken |= dict.fromkeys(unreached(own), 0.0)
    sizes = {words(cost): size for cost, size in taken.items()}
    if len(sizes) > MOST_BARS:
        alike = grouped(
            taken, lambda cost: (SORTS.get(cost.way.memory, cost.way.memory), format_bytes(round(taken[cost])))
        )
        sizes = {
            words(members[0]) if len(members) == 1 else f"{sort}, {len(members)} ways": taken[members[0]]
            for (sort, _), members in alike.items()
        }
    ends = {name: format_bytes(round(size)) for name, size in sizes.items()}
    title = "Page table of each pinned GiB"
    figure = bars(
        list(sizes), [Part("page table", "page_table", sizes)], "GPU memory (MiB)", format_bytes, scale=MIB, ends=ends
    )
    return Chart("small", title, "", figure.update_layout(showlegend=False), alt_text(title, ends.items()))
