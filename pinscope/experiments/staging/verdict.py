"""What a staging run answers, in one sentence."""

from __future__ import annotations

from collections.abc import Sequence

from pinscope.experiments.staging.arithmetic import Cell, by_way, phrase, slower, times_words, usual_size, winners
from pinscope.units import format_bandwidth, format_bytes


def staging_verdict(found: Sequence[Cell]) -> str | None:
    """What pinning for one copy takes beside a plain copy, and what the fastest way takes; ``None``: too little."""
    if any(cell.wrong for cell in found):
        return "Data arrived wrong: do not trust any figure of this run."
    size = usual_size(found)
    best, ways = winners(found, size), by_way(found, size)
    plain, pin = ways.get("plain"), ways.get("pin_then_copy")
    if not best or plain is None:
        return None
    bare = best[0].way.startswith("plain")
    beside = f"with {phrase(best[0])} it takes {times_words(slower(best[0], plain))}"
    if pin is None:
        if bare:
            return f"No way brings {format_bytes(size)} to the GPU faster than a plain copy: {_rate(plain)}."
        return f"To bring {format_bytes(size)} to the GPU, {beside} as long as with a plain copy: {_rate(best[0])}."
    return (
        f"To pin {format_bytes(size)} just to copy it once takes {times_words(slower(pin, plain))} as long as to copy "
        f"it as it lies; {'no way is faster than that' if bare else beside}."
    )


def _rate(cell: Cell) -> str:
    return format_bandwidth(cell.bytes_per_second)
