"""What a while_serving run answers, in one sentence."""

from __future__ import annotations

from collections.abc import Sequence

from pinscope.experiments.while_serving.arithmetic import Cell, in_one_piece, largest_within, of_way, slower
from pinscope.units import format_bytes, format_seconds


def while_serving_verdict(found: Sequence[Cell], limit: float) -> str | None:
    """How long calls wait in one piece and in chunks, and what the chunks cost; ``None`` where too little is known."""
    if any(cell.pinned is False for cell in found):
        return "CUDA does not take registered memory as pinned here: pin with cudaHostAlloc, before serving."
    naive = in_one_piece(found)
    gentle = of_way(found, "auto") or largest_within(found, limit)
    if naive is None or gentle is None or naive is gentle:
        shown = naive or gentle
        return (
            None
            if shown is None
            else (
                f"CUDA calls wait up to {format_seconds(shown.longest.seconds)} while the same process pins "
                f"{format_bytes(shown.bytes)} ({shown.title})."
            )
        )
    if naive.longest.seconds <= limit:
        return (
            f"One call may pin {format_bytes(naive.bytes)} while the program serves: its other CUDA calls wait "
            f"{format_seconds(naive.longest.seconds)} at most."
        )
    return (
        f"CUDA calls wait up to {format_seconds(naive.longest.seconds)} while {naive.title} pins "
        f"{format_bytes(naive.bytes)}, and up to {format_seconds(gentle.longest.seconds)} with {gentle.title}"
        f"{_cost(gentle, found)}."
    )


def _cost(cell: Cell, found: Sequence[Cell]) -> str:
    times = slower(cell, found)
    if times is None:
        return ""
    took = format_seconds(cell.seconds.median)
    return f", which takes {took} ({f'{times:.2f} times the' if times > 1.005 else 'the'} fastest)"
