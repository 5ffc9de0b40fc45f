"""What a pinning_strategy run answers, in one sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pinscope.analysis.pinning_strategy import IDLE, USUAL, WORTH_IT, Recommended, StrategyCell
from pinscope.records.pinning_strategy import STRATEGIES
from pinscope.units import format_bytes, format_seconds

_HOW: Mapping[str, str] = {
    "host_alloc": "one cudaHostAlloc",
    "host_alloc_chunks": "one cudaHostAlloc for each {chunk}",
    "register_untouched": "register memory that nobody touched, in 4 KiB pages, once",
    "touch_register": "touch 4 KiB pages with {threads}, then register once",
    "touch_register_chunks": "touch 4 KiB pages with {threads}, then register each {chunk}",
    "thp_register": "touch huge pages with {threads}, then register once",
    "thp_register_chunks": "touch huge pages with {threads}, then register each {chunk}",
    "thp_register_threads": "touch huge pages with {threads}, which then register {chunk} each",
    "thp_pipeline": "touch huge pages with {threads}, and register each {chunk} once touched",
}
"""Strategy → what to do."""


def pinning_verdict(cells: Mapping[str, StrategyCell], found: Recommended) -> str | None:
    """How to pin fast and how long that takes; ``None`` where no strategy was measured."""
    usual, refused = cells.get(USUAL), [cell for cell in cells.values() if cell.pinned is False]
    best = found.array or found.chunks or _fastest(cells)
    if best is None:
        return "CUDA does not take memory as pinned that was registered: pin with cudaHostAlloc." if refused else None
    size, seconds = format_bytes(best.bytes), format_seconds(best.total_seconds.median)
    if best is usual:
        return f"One cudaHostAlloc pins {size} in {seconds}{_why_usual(cells, found.chunks, refused)}."
    instead = f" instead of {format_seconds(usual.total_seconds.median)} by one cudaHostAlloc" if usual else ""
    wait = best.longest_wait
    waits = f"; {wait.what.lower()} holds others up {format_seconds(wait.seconds)}" if IDLE in cells else ""
    return f"{size} pinned in {seconds}{instead}: {how(best)}{waits}."


def how(cell: StrategyCell) -> str:
    """What a program does that pins this way."""
    threads = f"{cell.threads} thread{'' if cell.threads == 1 else 's'}"
    return _HOW[cell.strategy].format(threads=threads, chunk=format_bytes(cell.chunk_bytes))


def _worth_it(one: StrategyCell, other: StrategyCell) -> bool:
    return other.total_seconds.median >= WORTH_IT * one.total_seconds.median


def _fastest(cells: Mapping[str, StrategyCell]) -> StrategyCell | None:
    """Of those that pin, also in separate places."""
    pinned = [cell for name, cell in cells.items() if name in STRATEGIES and name != IDLE and cell.pinned is not False]
    return min(pinned, key=lambda cell: cell.total_seconds.median, default=None)


def _why_usual(cells: Mapping[str, StrategyCell], chunks: StrategyCell | None, refused: Sequence[StrategyCell]) -> str:
    if refused:
        return "; CUDA does not take registered memory as pinned here"
    if chunks is not None and _worth_it(chunks, cells[USUAL]):
        return f", chunks of {format_bytes(chunks.chunk_bytes)} take {format_seconds(chunks.total_seconds.median)}"
    others = [cell for name, cell in cells.items() if name not in (USUAL, IDLE)]
    faster = any(_worth_it(cell, cells[USUAL]) for cell in others)
    return ", and no other way that was tried is clearly faster" if others and not faster else ""
