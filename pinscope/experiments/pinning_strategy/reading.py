"""What the pinning strategy experiment concludes: headline, tables and findings from the rows of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pinscope.analysis.pinning_recipe import Recipe
from pinscope.analysis.pinning_strategy import (
    CALLS,
    GENTLE,
    IDLE,
    NEAR,
    PHASES,
    TITLES,
    USUAL,
    WORTH_IT,
    Recommended,
    StrategyCell,
    Wait,
    recommend,
    strategy_cells,
)
from pinscope.experiments.pinning_strategy.verdict import pinning_verdict
from pinscope.records.finding import Finding, Quantity, Reading, Table, critical, good, note, quantity, table, warning
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bytes, format_seconds

LONG_WAIT = 0.02
"""Seconds that a neighbour's driver call may take before it is worth a finding: a frame, a request of a server."""
SCHEDULING = 0.5
"""From this part of a wait on, waking late without any driver call may explain it."""

Cells = Mapping[str, StrategyCell]


def read_pinning_strategy(run: ExperimentRun, rows: Sequence[Mapping[str, Any]]) -> Reading:
    """Headline, tables and findings of a run; empty parts where nothing was measured yet."""
    cells = strategy_cells(rows)
    found = recommend(cells)
    if not _strategies(cells):
        return Reading(headline=(), tables=(), findings=())
    findings = (
        *_not_pinned(cells), *_recommended(run, cells, found), *_in_chunks(run, found), *_waits(cells, found),
        *_crossing(cells),
    )  # fmt: skip
    return Reading(
        verdict=pinning_verdict(cells, found), headline=_headline(run, cells, found),
        tables=(_speeds(run, cells), _wait_table(cells)), findings=findings,
    )  # fmt: skip


def _target(run: ExperimentRun, cell: StrategyCell) -> int:
    """The user's size; what was pinned, where the run has none."""
    return int(run.params.get("target", cell.bytes))


def _headline(run: ExperimentRun, cells: Cells, found: Recommended) -> tuple[Quantity, ...]:
    """Times first: of the recommended way, against one cudaHostAlloc; then its name and what others wait."""
    array, usual, target = found.array, cells.get(USUAL), None
    quantities: list[Quantity] = []
    if array and array is not usual:
        quantities.append(_time_quantity("the recommended way", array))
        target = _target(run, array)
    if usual:
        quantities.append(_time_quantity("one cudaHostAlloc", usual))
    if array and usual and array is not usual:
        gain = usual.total_seconds.median / array.total_seconds.median
        quantities.append(quantity("Recommended way, times faster than one cudaHostAlloc", gain, "ratio"))
    if array:
        quantities += [
            quantity("Recommended in one piece", TITLES[array.strategy], "text"),
            quantity("Pinning rate, in one piece", array.bytes_per_second, "bytes/second"),
        ]
    if array and target not in (None, array.bytes):
        name = f"Extrapolated to {format_bytes(target)} (parameter target)"
        quantities.append(quantity(name, array.seconds_for(target or 0), "seconds"))
    if found.chunks and (found.gentler_in_chunks or not array):
        quantities += [
            quantity("Recommended in chunks", TITLES[found.chunks.strategy], "text"),
            _time_quantity(f"chunks of {format_bytes(found.chunks.chunk_bytes)}", found.chunks),
        ]
        quantities.append(_wait_quantity(f"{_LONGEST}, in chunks", found.chunks))
    if array and array is not usual:
        quantities.append(_wait_quantity(f"{_LONGEST}, in one piece", array))
    if usual:
        quantities.append(_wait_quantity(f"{_LONGEST}, one cudaHostAlloc", usual))
    if IDLE in cells:
        quantities.append(_wait_quantity(f"{_LONGEST}, nothing pinned or freed", cells[IDLE]))
    return tuple(quantities)


_LONGEST = "Longest driver call of another process"


def _time_quantity(way: str, cell: StrategyCell) -> Quantity:
    name = f"Time to pin {format_bytes(cell.bytes)}, {way}"
    return quantity(name, cell.total_seconds.median, "seconds", spread=_spread(cell))


def _wait_quantity(name: str, cell: StrategyCell) -> Quantity:
    """The longest wait of both phases, and in which it was."""
    wait = cell.longest_wait
    during = "" if cell.strategy == IDLE else f", {wait.during}"
    return quantity(f"{name}{during}", wait.seconds, "seconds")


def _spread(cell: StrategyCell) -> float | None:
    """Of several repeats; a single one has none."""
    return cell.total_seconds.spread if cell.total_seconds.count > 1 else None


def _strategies(cells: Cells) -> list[StrategyCell]:
    return [cell for name, cell in cells.items() if name != IDLE]


def _speeds(run: ExperimentRun, cells: Cells) -> Table:
    usual = cells.get(USUAL)
    return table(
        "Strategies",
        {
            "strategy": "text", "size": "bytes", "chunk": "bytes", "threads": "count", "total": "seconds",
            "rate": "bytes/second", "of it touch": "seconds", "of it pin": "seconds", "give back": "seconds",
            "× cudaHostAlloc": "ratio", "usual wait": "seconds", "your size": "seconds", "CUDA: pinned": "text",
            "copies at": "bytes/second", "copies across chunks": "text", "repeats": "count",
        },
        [
            (
                TITLES[cell.strategy], cell.bytes, cell.chunk_bytes, cell.threads, cell.total_seconds.median,
                cell.bytes_per_second, cell.touch_seconds, cell.pin_seconds, cell.release_seconds,
                usual.total_seconds.median / cell.total_seconds.median if usual else None, cell.usual_wait_seconds,
                cell.seconds_for(_target(run, cell)), _yes(cell.pinned), cell.copy_bytes_per_second,
                {True: "taken", False: "refused", None: None}[cell.crossing_copies], cell.total_seconds.count,
            )
            for cell in _strategies(cells)
        ],
        note="Medians. Usual wait: of each repeat the longest that a neighbour waited. "
        "Your size: at the same pace. Copies at: one copy to the device within a chunk. Copies across "
        "chunks: whether CUDA takes one that crosses a boundary; n/a in one piece, and where chunks are separate "
        f"allocations. Recommended, in one piece and in chunks: of the strategies within {NEAR:g} times the fastest, "
        f"the fastest of those whose usual wait is within {GENTLE:g} times the shortest; cudaHostAlloc unless that is "
        f"{WORTH_IT:g} times as fast.",
    )  # fmt: skip


def _yes(value: bool | None) -> str | None:
    return None if value is None else "yes" if value else "no"


def _wait_table(cells: Cells) -> Table:
    """Both phases of every strategy, call by call."""
    rows = [
        (
            TITLES[name], "nothing" if name == IDLE else phase, *(cell.wait(phase, call) for call in CALLS.values()),
            cell.wait(phase), cell.control_seconds.get(phase),
        )
        for name, cell in cells.items() for phase in PHASES.values() if cell.wait(phase) is not None
    ]  # fmt: skip
    return table(
        "Longest waits of other processes",
        {
            "strategy": "text", "memory is": "text", **dict.fromkeys(CALLS.values(), "seconds"),
            "longest call": "seconds", "no driver calls": "seconds",
        },
        rows,
        note="The longest single call over all repeats, while memory was pinned and while it was given back. No driver "
        "calls: how late a process woke that makes none, which is what waiting for a processor takes. n/a: this "
        "run does not say.",
    )  # fmt: skip


def _not_pinned(cells: Cells) -> Iterator[Finding]:
    wrong = [cell for cell in _strategies(cells) if cell.pinned is False]
    if not wrong:
        return
    yield critical(
        "not-pinned",
        quantity("Strategies affected", len(wrong), "count"),
        title="CUDA does not take memory as pinned that was registered",
        detail=f"Affected: {'; '.join(TITLES[cell.strategy] for cell in wrong)}. On systems that share the host's "
        "page tables, registering does not page-lock.",
        advice="Take cudaHostAlloc here.",
    )


def _recommended(run: ExperimentRun, cells: Cells, found: Recommended) -> Iterator[Finding]:
    """The strategy for one array, against one cudaHostAlloc."""
    best, usual = found.array, cells.get(USUAL)
    if best is None or usual is None:
        return
    size = format_bytes(best.bytes)
    others = [cell for cell in _strategies(cells) if cell.strategy != USUAL and cell.pinned is not False]
    evidence = (
        quantity("One cudaHostAlloc", usual.total_seconds.median, "seconds"),
        *(quantity(TITLES[cell.strategy], cell.total_seconds.median, "seconds")
          for cell in (others if best.strategy == USUAL else [best])),
        _wait_quantity("Longest neighbour wait, one cudaHostAlloc", usual),
    )  # fmt: skip
    if best.strategy == USUAL:
        yield good(
            "usual-is-fast",
            *evidence,
            title=f"{format_seconds(usual.total_seconds.median)}: one cudaHostAlloc pins {size} about as fast as "
            "any other strategy in one piece",
            detail="No strategy that leaves one array for any copy is clearly faster here.",
        )
        return
    recipe, gain = Recipe.of(best, run.params), usual.total_seconds.median / best.total_seconds.median
    yield warning(
        "faster-strategy",
        *evidence,
        _wait_quantity("Longest neighbour wait, recommended", best),
        title=f"One cudaHostAlloc takes {gain:.1f} times as long to pin {size} as what is recommended: "
        f"{format_seconds(best.total_seconds.median)}",
        detail=f"Recommended for one array that any copy may use: {recipe.title}{_threads(recipe)}.{_parts(best)}",
        advice=f"Call {recipe.call(best.bytes)}, or paste the code.",
        code=recipe.code(),
    )


def _threads(recipe: Recipe) -> str:
    return f", {recipe.threads} threads"


def _parts(cell: StrategyCell) -> str:
    """Where the time goes, where it was measured apart."""
    if cell.touch_seconds is None or cell.pin_seconds is None:
        return ""
    touched, pinned = format_seconds(cell.touch_seconds), format_seconds(cell.pin_seconds)
    return f" Touching its pages took {touched}, registering them {pinned}."


def _in_chunks(run: ExperimentRun, found: Recommended) -> Iterator[Finding]:
    """The gentler way, where each copy can stay within a chunk."""
    chunks, array = found.chunks, found.array
    if chunks is None or (array is not None and not found.gentler_in_chunks):
        return
    recipe, size, wait = Recipe.of(chunks, run.params), format_bytes(chunks.bytes), chunks.longest_wait
    against = f", not {format_seconds(array.longest_wait.seconds)}" if array else ""
    yield note(
        "gentler-in-chunks",
        quantity(TITLES[chunks.strategy], chunks.total_seconds.median, "seconds"),
        *_wait_evidence("In chunks", chunks),
        *(_wait_evidence("In one piece", array) if array else ()),
        title=f"In chunks of {format_bytes(chunks.chunk_bytes)}, other processes on the GPU waited at most "
        f"{format_seconds(wait.seconds)}{against}",
        detail=f"Recommended where each copy stays within a chunk: {recipe.title}{_threads(recipe)}, {size} in "
        f"{format_seconds(chunks.total_seconds.median)}. An array for any copy must be in one piece, because CUDA "
        "refuses copies that cross.",
        advice=f"Where others use the GPU: {recipe.call(chunks.bytes)}, or paste the code.",
        code=recipe.code(),
    )


def _wait_evidence(name: str, cell: StrategyCell) -> list[Quantity]:
    """The longest wait, named, and what a process without driver calls felt meanwhile."""
    wait = cell.longest_wait
    late = cell.control_seconds.get(wait.phase)
    control = [quantity(f"{name}: woke late meanwhile, without driver calls", late, "seconds")]
    return [quantity(f"{name}: {wait.words}", wait.seconds, "seconds"), *(control if late else ())]


def _waits(cells: Cells, found: Recommended) -> Iterator[Finding]:
    """What others wait for: with one cudaHostAlloc, as programs usually pin, else with the strategy that is worst."""
    worst = max(_strategies(cells), key=lambda cell: cell.longest_wait.seconds)
    shown = cells.get(USUAL, worst)
    if shown.longest_wait.seconds < LONG_WAIT:
        shown = worst
    wait = shown.longest_wait
    if wait.seconds < LONG_WAIT:
        return
    gentle = found.chunks if found.gentler_in_chunks else None
    yield warning(
        "neighbours-wait",
        *_wait_evidence(f"With {TITLES[shown.strategy]}", shown),
        *(_wait_evidence(f"With {TITLES[worst.strategy]}", worst) if worst is not shown else ()),
        *(_wait_evidence(f"With {TITLES[gentle.strategy]}", gentle) if gentle else ()),
        *([_wait_quantity("Idle", cells[IDLE])] if IDLE in cells else ()),
        title=f"Another process's {wait.call} took {format_seconds(wait.seconds)} while "
        f"{format_bytes(shown.bytes)} were being {wait.phase}: {TITLES[shown.strategy]}",
        detail=f"{_why_waiting(shown, wait)}{_worse(worst, shown)}",
        advice="Pin and free large buffers before others start working"
        + (", or pin in chunks, as the note on chunks shows." if gentle else "."),
    )


def _worse(worst: StrategyCell, shown: StrategyCell) -> str:
    """The longest wait of the run, where that is not the one shown."""
    if worst is shown:
        return ""
    wait = worst.longest_wait
    return f" The longest of this run: {format_seconds(wait.seconds)}, {TITLES[worst.strategy]}, while {wait.phase}."


def _why_waiting(cell: StrategyCell, wait: Wait) -> str:
    late = cell.control_seconds.get(wait.phase)
    if late is not None and late >= SCHEDULING * wait.seconds:
        return f"A process without driver calls woke {format_seconds(late)} late: the processors were busy."
    known = f"; a process without driver calls woke at most {format_seconds(late)} late" if late is not None else ""
    return f"The driver holds a lock that other processes on the GPU need, also for monitoring{known}."


def _crossing(cells: Cells) -> Iterator[Finding]:
    refused = [cell for cell in _strategies(cells) if cell.crossing_copies is False]
    if not refused:
        return
    chunk = format_bytes(refused[0].chunk_bytes)
    yield warning(
        "copies-refused-across-chunks",
        quantity("Chunk", refused[0].chunk_bytes, "bytes"),
        quantity("Strategies affected", len(refused), "count"),
        title="A copy across the boundary of two registered chunks is refused",
        detail="CUDA answers cudaErrorInvalidValue (invalid argument), although CUDA calls both sides pinned; "
        "kernels may cross.",
        advice=f"Keep each copy within a multiple of the chunk ({chunk} here), for instance by making the chunk a "
        "multiple of your block, or pin in one piece.",
    )
