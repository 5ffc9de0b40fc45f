"""How the experiment's readings name what was moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pinscope.experiments.scatter.arithmetic import Cell
from pinscope.units import format_bytes

BY_WAY: Mapping[str, str] = {
    "contiguous": "one contiguous copy",
    "loop": "a loop of copies",
    "batch": "one batch call",
    "graph": "a CUDA graph of the copies",
    "copy_2d": "one 2D copy",
    "kernel": "one kernel",
    "cpu": "CPU threads and one copy",
    "managed": "prefetches of managed memory",
}
TOWARDS: Mapping[str, str] = {"h2d": "to the GPU", "d2h": "from the GPU"}


def pieces_words(cell: Cell) -> str:
    """``4,096 scattered pieces of 4 KiB``."""
    many = f"{cell.pieces:,} " + ("scattered pieces" if cell.layout == "scattered" else "strided pieces")
    return f"{many} of {format_bytes(cell.bytes)}"


def gb(rate: float) -> str:
    """GB/s as a person says it: ``49.7``, ``1.45``."""
    return f"{rate / 1e9:.{1 if rate >= 9.95e9 else 2}f}"


def sizes_words(found: Sequence[int], measured: Sequence[int]) -> str:
    """Sizes, neighbours among the measured ones as a stretch: ``4 KiB to 64 KiB and 1 MiB``."""
    order, stretches = sorted(set(measured)), list[list[int]]()
    for size in sorted(set(found)):
        if stretches and order.index(size) == order.index(stretches[-1][-1]) + 1:
            stretches[-1].append(size)
        else:
            stretches.append([size])
    words = [format_bytes(each[0]) + (f" to {format_bytes(each[-1])}" if len(each) > 1 else "") for each in stretches]
    return " and ".join(words)
