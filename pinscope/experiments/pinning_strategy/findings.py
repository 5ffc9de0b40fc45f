"""What the pinning strategy experiment found out: which way is faster, and which makes other processes wait less."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pinscope.analysis.pinning_strategy import NOT_PINNED, Recipe, StrategyCell, cause, is_near, not_pinned
from pinscope.analysis.statistics import measured
from pinscope.analysis.texts import Costed, Text, Texts, saying
from pinscope.experiments.pinning_strategy.reading import Pinnings, longest_wait
from pinscope.records.run import Quantity, quantity
from pinscope.units import format_bytes, format_precision

LONG_WAIT = 0.02
"""Seconds that a neighbour's driver call may take before it is worth a finding: a frame, a request of a server."""
_WHY = (
    "[A process that makes no driver calls was delayed by {busy:seconds} as well: the processors were busy.][The "
    "driver makes other processes' calls wait; at that time a process that makes no driver calls was delayed by "
    "{driver:seconds}, so the processors were not the cause.]"
)
TEXTS: Texts = {
    **NOT_PINNED,
    "faster-strategy": Text(
        when="another way in one piece is 1.5 times as fast as one cudaHostAlloc",
        title="One cudaHostAlloc of {best.bytes:bytes} takes {usual.total_seconds.median:seconds}, {longer} as long as "
        "the recommended way ({best.total_seconds.median:seconds})",
        detail="Recommended for one array that any copy may use: {recipe.title}, {recipe.threads:threads}.[ Touching "
        "its pages took {best.touch_seconds:seconds}, registering them {best.pin_seconds:seconds}.]",
        advice="Call {call}.",
    ),
    "neighbours-wait": Text(
        when="another process's driver call takes 20 ms, and pinning in chunks is not known to be gentler",
        title="{wait.what} {cell.bytes:bytes} made another process's {wait.call} take {wait.seconds:seconds} "
        "({cell.title})[ {few}]",
        detail=_WHY
        + "[ The longest of this run: {longest.longest_wait.seconds:seconds}, {longest.longest_wait.during} "
        "by {longest.title}.]",
        advice="Pin and free large buffers before others start working.",
        severity="warning",
    ),
    "gentler-in-chunks": Text(
        when="other processes wait 1.5 times as long in one piece as in chunks, in each of three repeats or more",
        title="{wait.what} {cell.bytes:bytes} held another process up {wait.seconds:seconds} ({cell.title}), [the "
        "recommended way in one piece {array.longest_wait.seconds:seconds}{array_during}, ]in chunks of "
        "{recipe.chunk_bytes:bytes} {chunks.longest_wait.seconds:seconds}{chunks_during}[ {few}]"
        "[, no longer than with nothing pinned ({idle:seconds})]",
        detail=_WHY + " Recommended in chunks: {recipe.title}, {recipe.threads:threads}, in "
        "{chunks.total_seconds.median:seconds}[ (in one piece {one_piece:seconds})]"
        "[; CUDA refuses a copy that crosses from one of {refused:bytes} into the "
        "next].",
        advice="Where each copy can stay inside one chunk, and above all where other processes use the GPU, call "
        "{call}: make the chunk a multiple of the size of your copies, or let "
        'chunk="auto" find the longest that keeps waits short.',
    ),
}
say = saying(TEXTS)


def _faster(pinnings: Pinnings) -> Iterator[Costed]:
    """The strategy for one array, against one cudaHostAlloc."""
    best, usual = pinnings.recommended.array, pinnings.usual
    if best is None or usual is None or best is usual:
        return
    recipe, target = Recipe.of(best, pinnings.run.params), int(pinnings.run.params.get("target", best.bytes))
    extrapolated = quantity(
        f"Extrapolated to {format_bytes(target)} (parameter target)",
        best.seconds_for(target) if is_near(target, best.bytes) else None,
        "seconds",
        reason=f"{format_bytes(best.bytes)} say nothing of so much more or less",
    )
    yield say(
        "faster-strategy",
        measured("One cudaHostAlloc", usual.total_seconds, "seconds"),
        measured(best.title, best.total_seconds, "seconds"),
        *([extrapolated] if target != best.bytes else []),
        durations=(usual.total_seconds, best.total_seconds),
        severity="by cost",
        code=recipe.code(best.bytes),
        best=best,
        usual=usual,
        recipe=recipe,
        call=recipe.call(best.bytes),
    )


def _worst(pinnings: Pinnings) -> tuple[StrategyCell, StrategyCell]:
    """Whose wait the findings give: one cudaHostAlloc's, if that is long; and the longest of the run."""
    longest = max(pinnings.strategies, key=lambda cell: cell.longest_wait.seconds)
    usual = pinnings.usual
    return usual if usual and usual.longest_wait.seconds >= LONG_WAIT else longest, longest


def _evidence(pinnings: Pinnings, *cells: StrategyCell | None) -> Iterator[Quantity]:
    """The longest wait of each, named, and by how much a process without driver calls was late meanwhile."""
    for cell in {cell.strategy: cell for cell in cells if cell}.values():
        wait = cell.longest_wait
        yield quantity(f"{cell.title}: {wait.words}", wait.seconds, "seconds")
        if late := cell.control_seconds.get(wait.phase):
            yield quantity(f"{cell.title}: delay of a process without driver calls", late, "seconds")
    if pinnings.idle:
        yield longest_wait("while nothing is pinned or freed", pinnings.idle)


def _why(cell: StrategyCell) -> dict[str, Any]:
    return cause(cell.longest_wait.seconds, cell.control_seconds.get(cell.longest_wait.phase))


def _long_wait(pinnings: Pinnings) -> Iterator[Costed]:
    """What others wait for beside one cudaHostAlloc or what is recommended, where no chunks are known to mend it."""
    cell, longest = _worst(pinnings)
    if not pinnings.chunks and cell.longest_wait.seconds >= LONG_WAIT and cell in (pinnings.usual, pinnings.best):
        yield say(
            "neighbours-wait",
            *_evidence(pinnings, cell, longest),
            cell=cell,
            wait=cell.longest_wait,
            longest=None if longest is cell else longest,
            few=format_precision(None, cell.total_seconds.few) or None,
            **_why(cell),
        )


def _other_phase(other: StrategyCell, cell: StrategyCell) -> str:
    """`` while freeing``, where the longest wait beside the other was in another phase than beside the cell."""
    wait = other.longest_wait
    return "" if wait.phase == cell.longest_wait.phase else f" {wait.during}"


def _gentler_in_chunks(pinnings: Pinnings) -> Iterator[Costed]:
    """How long others wait in one piece and in chunks, and what a copy must keep to then."""
    chunks = pinnings.chunks
    if chunks is None:
        return
    worst, _ = _worst(pinnings)
    array = pinnings.recommended.array
    cell = worst if worst is pinnings.usual else array or worst  # the same pages as the chunks
    recipe = Recipe.of(chunks, pinnings.run.params)
    name = f"Time to pin {format_bytes(chunks.bytes)} in chunks: {chunks.title}"
    refused = any(other.crossing_copies is False for other in pinnings.strategies)
    idle = pinnings.idle and pinnings.idle.longest_wait.seconds
    yield say(
        "gentler-in-chunks",
        measured(name, chunks.total_seconds, "seconds"),
        *_evidence(pinnings, cell, array, chunks),
        severity="warning" if cell.longest_wait.seconds >= LONG_WAIT else "note",
        code=recipe.code(chunks.bytes),
        cell=cell,
        wait=cell.longest_wait,
        array=None if array is cell else array,
        array_during=_other_phase(array, cell) if array else None,
        chunks=chunks,
        chunks_during=_other_phase(chunks, cell),
        few=format_precision(None, chunks.total_seconds.few) or None,
        idle=idle if idle and idle >= chunks.longest_wait.seconds else None,
        one_piece=array and array.total_seconds.median,
        recipe=recipe,
        call=recipe.call(chunks.bytes),
        refused=chunks.chunk_bytes if refused else None,
        **_why(cell),
    )


RULES = (not_pinned, _faster, _long_wait, _gentler_in_chunks)
