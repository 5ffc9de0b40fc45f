"""What the pinning strategy experiment concludes: headline, tables and findings from the rows of a run."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from pinscope.analysis.pinning_recipe import Recipe
from pinscope.analysis.pinning_strategy import (
    CALLS,
    GENTLE,
    IDLE,
    NEAR,
    PHASES,
    TITLES,
    UNNAMED,
    USUAL,
    WORTH_IT,
    Recommended,
    StrategyCell,
    Wait,
    recommend,
    strategy_cells,
)
from pinscope.analysis.statistics import measured
from pinscope.experiments.pinning_strategy.verdict import pinning_verdict
from pinscope.records.finding import (
    Finding,
    Quantity,
    Reading,
    Table,
    costing,
    critical,
    finding,
    good,
    note,
    quantity,
    table,
    warning,
)
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
    others = tuple(_others_wait(run, cells, found))
    findings = (*_not_pinned(cells), *_recommended(run, cells, found), *others, *_crossing(cells, others))
    return Reading(
        verdict=pinning_verdict(cells, found),
        headline=_headline(run, cells, found),
        tables=(_speeds(run, cells), _wait_table(cells)),
        findings=findings,
    )


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
        quantities.append(_wait_quantity("in chunks", found.chunks))
    if array and array is not usual:
        quantities.append(_wait_quantity("in one piece", array))
    if usual:
        quantities.append(_wait_quantity("with one cudaHostAlloc", usual))
    if IDLE in cells:
        quantities.append(_wait_quantity("", cells[IDLE]))
    return tuple(quantities)


_LONGEST = "Longest driver call of another process"


def _time_quantity(way: str, cell: StrategyCell) -> Quantity:
    name = f"Time to pin {format_bytes(cell.bytes)}, {way}"
    return measured(name, cell.total_seconds, "seconds")


def _wait_quantity(way: str, cell: StrategyCell) -> Quantity:
    """The longest wait of both phases, and in which it was."""
    wait = cell.longest_wait
    during = " while nothing is pinned or freed" if cell.strategy == IDLE else f" {wait.during} {way}"
    return quantity(f"{_LONGEST}{during}", wait.seconds, "seconds")


def _strategies(cells: Cells) -> list[StrategyCell]:
    return [cell for name, cell in cells.items() if name != IDLE]


def _speeds(run: ExperimentRun, cells: Cells) -> Table:
    usual = cells.get(USUAL)
    return table(
        "Strategies",
        {
            "strategy": "text",
            "size": "bytes",
            "chunk": "bytes",
            "threads": "count",
            "total": "seconds",
            "rate": "bytes/second",
            "of it touch": "seconds",
            "of it pin": "seconds",
            "give back": "seconds",
            "× cudaHostAlloc": "ratio",
            "usual wait": "seconds",
            "your size": "seconds",
            "CUDA: pinned": "text",
            "copies at": "bytes/second",
            "copies across chunks": "text",
            "repeats": "count",
        },
        [
            (
                TITLES[cell.strategy],
                cell.bytes,
                cell.chunk_bytes,
                cell.threads,
                cell.total_seconds.median,
                cell.bytes_per_second,
                cell.touch_seconds,
                cell.pin_seconds,
                cell.release_seconds,
                usual.total_seconds.median / cell.total_seconds.median if usual else None,
                cell.usual_wait_seconds,
                cell.seconds_for(_target(run, cell)),
                _yes(cell.pinned),
                cell.copy_bytes_per_second,
                {True: "taken", False: "refused", None: None}[cell.crossing_copies],
                cell.total_seconds.count,
            )
            for cell in _strategies(cells)
        ],
        note="Medians. Usual wait: of each repeat the longest driver call of another process. "
        "Your size: at the same pace. Copies at: one copy to the device within a chunk. Copies across "
        "chunks: whether CUDA takes one that crosses a boundary; n/a in one piece, and where chunks are separate "
        f"allocations. Recommended, in one piece and in chunks: of the strategies within {NEAR:g} times the fastest, "
        f"the fastest of those whose usual wait is within {GENTLE:g} times the shortest; cudaHostAlloc unless that is "
        f"{WORTH_IT:g} times as fast.",
    )


def _yes(value: bool | None) -> str | None:
    return None if value is None else "yes" if value else "no"


def _wait_table(cells: Cells) -> Table:
    """Both phases of every strategy, call by call."""
    rows = [
        (
            TITLES[name],
            "nothing" if name == IDLE else phase,
            *(cell.wait(phase, call) for call in CALLS.values()),
            cell.wait(phase),
            cell.control_seconds.get(phase),
        )
        for name, cell in cells.items()
        for phase in PHASES.values()
        if cell.wait(phase) is not None
    ]
    return table(
        "Longest waits of other processes",
        {
            "strategy": "text",
            "memory is": "text",
            **dict.fromkeys(CALLS.values(), "seconds"),
            "longest call": "seconds",
            "no driver calls": "seconds",
        },
        rows,
        note="The longest single call over all repeats, while memory was pinned and while it was given back. No driver "
        "calls: how late a process woke that makes none, which is what waiting for a processor takes. n/a: this "
        "run does not say.",
    )


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
    size, usually = format_bytes(best.bytes), format_seconds(usual.total_seconds.median)
    others = [cell for cell in _strategies(cells) if cell.strategy != USUAL and cell.pinned is not False]
    evidence = (
        quantity("One cudaHostAlloc", usual.total_seconds.median, "seconds"),
        *(
            quantity(TITLES[cell.strategy], cell.total_seconds.median, "seconds")
            for cell in (others if best.strategy == USUAL else [best])
        ),
    )
    if best.strategy == USUAL:
        if others:
            yield good(
                "usual-is-fast",
                *evidence,
                title=f"One cudaHostAlloc pins {size} in {usually}: no other strategy in one piece is clearly faster",
                detail=f"Another is recommended from {WORTH_IT:g} times that speed on.",
            )
        return
    recipe, gain = Recipe.of(best, run.params), usual.total_seconds.median / best.total_seconds.median
    yield finding(
        costing(gain),
        "faster-strategy",
        *evidence,
        title=f"One cudaHostAlloc takes {usually} to pin {size}, {gain:.1f} times as long as the recommended way "
        f"({format_seconds(best.total_seconds.median)})",
        detail=f"Recommended for one array that any copy may use: {recipe.title}{_threads(recipe)}.{_parts(best)}",
        advice=f"Call {recipe.call(best.bytes)}, or paste the code below.",
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


def _wait_evidence(strategy: str, cell: StrategyCell) -> list[Quantity]:
    """The longest wait, named, and by how much a process without driver calls was late meanwhile."""
    wait = cell.longest_wait
    late = cell.control_seconds.get(wait.phase)
    control = [quantity(f"{strategy}: delay of a process without driver calls", late, "seconds")]
    return [quantity(f"{strategy}: {wait.words}", wait.seconds, "seconds"), *(control if late else ())]


def _others_wait(run: ExperimentRun, cells: Cells, found: Recommended) -> Iterator[Finding]:
    """How long other processes wait while memory is pinned in one piece, and that they wait less in chunks."""
    longest = max(_strategies(cells), key=lambda cell: cell.longest_wait.seconds)
    shown = cells.get(USUAL, longest)
    if shown.longest_wait.seconds < LONG_WAIT:
        shown = longest
    if found.chunks and (found.gentler_in_chunks or found.array is None):
        yield _gentler_in_chunks(run, cells, shown, found.array, found.chunks)
    elif shown.longest_wait.seconds >= LONG_WAIT:
        yield _long_wait(cells, shown, longest)


def _long_wait(cells: Cells, shown: StrategyCell, longest: StrategyCell) -> Finding:
    """What others wait for, where no chunks mend it."""
    wait = shown.longest_wait
    return warning(
        "neighbours-wait",
        *_wait_evidence(TITLES[shown.strategy], shown),
        *(_wait_evidence(TITLES[longest.strategy], longest) if longest is not shown else ()),
        *_idle_evidence(cells),
        title=f"{wait.what} {format_bytes(shown.bytes)} made another process's {wait.call} take "
        f"{format_seconds(wait.seconds)} ({TITLES[shown.strategy]})",
        detail=_why_waiting(shown, wait) + _longest_of_run(longest, shown),
        advice="Pin and free large buffers before others start working.",
    )


def _gentler_in_chunks(
    run: ExperimentRun, cells: Cells, shown: StrategyCell, array: StrategyCell | None, chunks: StrategyCell
) -> Finding:
    """One story: how long others wait in one piece and in chunks, and what a copy must keep to then."""
    compared = {cell.strategy: cell for cell in (shown, array, chunks) if cell is not None}
    recipe, size, wait = Recipe.of(chunks, run.params), format_bytes(chunks.bytes), shown.longest_wait
    return finding(
        "warning" if wait.seconds >= LONG_WAIT else "note",
        "gentler-in-chunks",
        quantity(f"Time to pin {size} in chunks: {TITLES[chunks.strategy]}", chunks.total_seconds.median, "seconds"),
        *(part for cell in compared.values() for part in _wait_evidence(TITLES[cell.strategy], cell)),
        *_idle_evidence(cells),
        title=f"{_meanwhile(compared.values())} {size} made another process's {_calls(compared.values())} take up to "
        + ", ".join(f"{format_seconds(cell.longest_wait.seconds)} {_where(cell, array)}" for cell in compared.values()),
        detail=f"{_why_waiting(shown, wait)} Recommended in chunks: {recipe.title}{_threads(recipe)}, in "
        f"{format_seconds(chunks.total_seconds.median)}.{_refused(cells)}",
        advice=f"Where other processes use the GPU, call {recipe.call(chunks.bytes)}, or paste the code below, and "
        f"keep each copy inside one chunk: {_CHUNK_ADVICE}",
        code=recipe.code(),
    )


def _where(cell: StrategyCell, array: StrategyCell | None) -> str:
    """The strategy as a title names it."""
    if cell.strategy == USUAL:
        return "with one cudaHostAlloc"
    if cell is array:
        return "in one piece as recommended"
    return f"in chunks of {format_bytes(cell.chunk_bytes)}" if cell.chunk_bytes else f"with {TITLES[cell.strategy]}"


def _meanwhile(cells: Collection[StrategyCell]) -> str:
    """What was done to the memory while others waited longest."""
    done = {cell.longest_wait.what for cell in cells}
    return next(iter(done)) if len(done) == 1 else "Pinning or freeing"


def _calls(cells: Collection[StrategyCell]) -> str:
    """Which call waited longest, where it is the same one."""
    calls = {cell.longest_wait.call for cell in cells}
    return next(iter(calls)) if len(calls) == 1 and UNNAMED not in calls else "driver calls"


_CHUNK_ADVICE = (
    "make the chunk a multiple of the size of your copies. Pin and free in one piece, while no others run, where a "
    "copy may begin and end anywhere."
)


def _refused(cells: Cells) -> str:
    return f" {_REFUSED}" if any(cell.crossing_copies is False for cell in cells.values()) else ""


_REFUSED = "CUDA refuses a copy that crosses from one chunk into the next (cudaErrorInvalidValue); kernels may cross."


def _idle_evidence(cells: Cells) -> list[Quantity]:
    return [_wait_quantity("", cells[IDLE])] if IDLE in cells else []


def _longest_of_run(longest: StrategyCell, shown: StrategyCell) -> str:
    """The longest wait of the run, where that is not the one shown."""
    if longest is shown:
        return ""
    wait = longest.longest_wait
    return f" The longest of this run: {format_seconds(wait.seconds)}, {wait.during} by {TITLES[longest.strategy]}."


def _why_waiting(cell: StrategyCell, wait: Wait) -> str:
    late = cell.control_seconds.get(wait.phase)
    if late is not None and late >= SCHEDULING * wait.seconds:
        return (
            f"A process that makes no driver calls was delayed by {format_seconds(late)} as well: the processors were "
            "busy."
        )
    cause = "The driver makes other processes' calls wait"
    if late is None:
        return f"{cause}."
    return (
        f"{cause}; at that time a process that makes no driver calls was delayed by {format_seconds(late)}, so the "
        "processors were not the cause."
    )


def _crossing(cells: Cells, others: Sequence[Finding]) -> Iterator[Finding]:
    """What a copy must keep to in chunks, where no advice to pin in chunks says it."""
    refused = [cell for cell in _strategies(cells) if cell.crossing_copies is False]
    if not refused or any(one.rule == "gentler-in-chunks" for one in others):
        return
    yield note(
        "copies-refused-across-chunks",
        quantity("Chunk", refused[0].chunk_bytes, "bytes"),
        quantity("Strategies affected", len(refused), "count"),
        title="A copy across the boundary of two registered chunks is refused",
        detail=_REFUSED,
        advice=f"Keep each copy inside one chunk ({format_bytes(refused[0].chunk_bytes)} here): {_CHUNK_ADVICE}",
    )
