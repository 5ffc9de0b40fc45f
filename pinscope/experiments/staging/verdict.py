"""What a staging run answers, in one sentence."""

from __future__ import annotations

from collections.abc import Sequence

from pinscope.experiments.staging.arithmetic import Cell, by_way, phrase, usual_size, winners
from pinscope.units import format_bytes, format_seconds


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
    if pin is None:
        if bare:
            return f"No way brings {format_bytes(size)} to the GPU faster than a plain copy: {_time(plain)}."
        faster = f"{format_bytes(size)} reach the GPU in {_time(best[0])} with {phrase(best[0])}"
        return f"{faster}; a plain copy takes {_time(plain)}."
    others = "no way is faster than that" if bare else f"{phrase(best[0])} {_time(best[0])}"
    return (
        f"Copying {format_bytes(size)} once through a newly pinned buffer takes {_time(pin)}, a plain copy "
        f"{_time(plain)}, {others}."
    )


def _time(cell: Cell) -> str:
    return format_seconds(cell.wall_seconds.median)
