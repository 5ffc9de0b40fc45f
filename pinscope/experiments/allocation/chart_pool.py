"""What PyTorch's pool pins for one tensor, beside what was asked for."""

from __future__ import annotations

from collections.abc import Sequence

from pinscope.charts.bars import Part, bars
from pinscope.charts.chart import Chart, alt_text
from pinscope.experiments.allocation.reading_pool import PoolUse
from pinscope.units import format_bytes

MIB = 2**20


def draw_pool(uses: Sequence[PoolUse]) -> Chart | None:
    """A bar for each setting; ``None`` where nothing is known."""
    known = {use.title: (use, use.taken) for use in uses if use.taken is not None}
    if not known:
        return None
    asked = {title: float(min(use.asked, taken)) for title, (use, taken) in known.items()}
    parts = (
        Part("asked for", "pinned", asked),
        Part("rounded up", "stall", {title: taken - asked[title] for title, (_, taken) in known.items()}, "/"),
    )
    ends = {title: format_bytes(taken) for title, (_, taken) in known.items()}
    size = format_bytes(uses[0].asked)
    return Chart(
        "pytorch-pool",
        f"What PyTorch pins for a tensor of {size}",
        "What the host's count of pinned pages grew by, with each setting in a process of its own.",
        bars(list(known), parts, "Pinned (MiB)", format_bytes, scale=MIB, ends=ends),
        alt_text(f"Pinned by PyTorch for a tensor of {size}", ends.items()),
    )
