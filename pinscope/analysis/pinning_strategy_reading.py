"""What the pinning strategy experiment concludes: headline, tables and findings from the rows of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pinscope.analysis.pinning_recipe import recipe
from pinscope.analysis.pinning_strategy import IDLE, TITLES, USUAL, WAITS, StrategyCell, best_strategy, strategy_cells
from pinscope.records.finding import Finding, Quantity, Reading, Table
from pinscope.records.run import Run
from pinscope.units import exact_bytes, format_bytes, format_seconds

WORTH_IT = 1.5
"""A strategy is recommended over cudaHostAlloc from this many times its speed on."""
LONG_WAIT = 0.02
"""Seconds that a neighbour's driver call may take before it is worth a finding: a frame, a request of a server."""

Cells = Mapping[str, StrategyCell]


def read_pinning_strategy(run: Run, rows: Sequence[Mapping[str, Any]]) -> Reading:
    """Headline, tables and findings of a run; empty parts where nothing was measured yet."""
    cells = strategy_cells(rows)
    best = best_strategy(cells.values())
    if best is None:
        return Reading(headline=(), tables=(), findings=())
    whole = best_strategy(cells.values(), whole=True)
    usual = cells.get(USUAL)
    findings = (
        *_not_pinned(cells),
        *_recommended(best, usual),
        *_any_copy(whole, best, usual),
        *_waits(cells, best),
        *_crossing(cells),
    )
    return Reading(
        headline=_headline(run, cells, best, usual), tables=(_speeds(run, cells), _wait_table(cells)), findings=findings
    )


def _target(run: Run, cell: StrategyCell) -> int:
    """The user's size; what was pinned, where the run has none."""
    return int(run.params.get("target", cell.bytes))


def _headline(run: Run, cells: Cells, best: StrategyCell, usual: StrategyCell | None) -> tuple[Quantity, ...]:
    size, target = format_bytes(best.bytes), _target(run, best)
    found = [
        Quantity(name="Best strategy", value=TITLES[best.strategy], unit="text"),
        Quantity(
            name=f"It pins {size} in", value=best.total_seconds.median, unit="seconds", spread=_spread(best)
        ),
        Quantity(name="Its rate", value=best.bytes_per_second, unit="bytes/second"),
        Quantity(name=f"Your {format_bytes(target)} take", value=best.seconds_for(target), unit="seconds"),
        Quantity(name="Longest neighbour wait", value=best.longest_wait, unit="seconds"),
    ]  # fmt: skip
    if usual:
        gain = usual.total_seconds.median / best.total_seconds.median
        found += [
            Quantity(name="Times faster than one cudaHostAlloc", value=gain, unit="ratio"),
            Quantity(name=f"One cudaHostAlloc of {size}", value=usual.total_seconds.median, unit="seconds"),
            Quantity(name="Longest neighbour wait, one cudaHostAlloc", value=usual.longest_wait, unit="seconds"),
            Quantity(name="Its wait ÷ that of cudaHostAlloc", value=best.longest_wait / usual.longest_wait,
                     unit="share"),
        ]  # fmt: skip
    if IDLE in cells:
        found.append(Quantity(name="Longest neighbour wait, idle", value=cells[IDLE].longest_wait, unit="seconds"))
    return tuple(found)


def _spread(cell: StrategyCell) -> float | None:
    """Of several repeats; a single one has none."""
    return cell.total_seconds.spread if cell.total_seconds.count > 1 else None


def _strategies(cells: Cells) -> list[StrategyCell]:
    return [cell for name, cell in cells.items() if name != IDLE]


def _speeds(run: Run, cells: Cells) -> Table:
    usual = cells.get(USUAL)
    return Table(
        title="Strategies",
        columns=("strategy", "size", "chunk", "threads", "total", "rate", "of it touch", "of it pin", "give back",
                 "× cudaHostAlloc", "your size", "CUDA: pinned", "copies at", "copies across chunks", "repeats"),
        units=("text", "bytes", "bytes", "count", "seconds", "bytes/second", "seconds", "seconds", "seconds",
               "ratio", "seconds", "text", "bytes/second", "text", "count"),
        rows=tuple(
            (
                TITLES[cell.strategy], cell.bytes, cell.chunk_bytes, cell.threads, cell.total_seconds.median,
                cell.bytes_per_second, cell.touch_seconds, cell.pin_seconds, cell.release_seconds,
                usual.total_seconds.median / cell.total_seconds.median if usual else None,
                cell.seconds_for(_target(run, cell)), _yes(cell.pinned), cell.copy_bytes_per_second,
                {True: "taken", False: "refused", None: None}[cell.crossing_copies], cell.total_seconds.count,
            )
            for cell in _strategies(cells)
        ),
        note="Medians. Your size: at the same pace. Copies at: one copy to the device within a piece. Copies across "
        "chunks: whether CUDA takes one that crosses a boundary; n/a where there is no boundary.",
    )  # fmt: skip


def _yes(value: bool | None) -> str | None:
    return None if value is None else "yes" if value else "no"


def _wait_table(cells: Cells) -> Table:
    calls = tuple(WAITS.values())
    return Table(
        title="Longest waits of other processes",
        columns=("strategy", *calls, "while giving back"),
        units=("text", *("seconds" for _ in calls), "seconds"),
        rows=tuple(
            (TITLES[name], *(cell.waits[call] for call in calls), cell.release_wait_seconds)
            for name, cell in cells.items()
        ),
        note="The longest single call over all repeats. Idle: the same calls with nothing going on.",
    )


def _not_pinned(cells: Cells) -> list[Finding]:
    wrong = [cell for cell in _strategies(cells) if cell.pinned is False]
    if not wrong:
        return []
    return [
        Finding(
            rule="not-pinned", severity="critical",
            title="CUDA does not take memory as pinned that was registered",
            detail=f"Affected: {'; '.join(TITLES[cell.strategy] for cell in wrong)}. On systems that share the host's "
            "page tables, registering does not page-lock.",
            evidence=(Quantity(name="Strategies affected", value=len(wrong), unit="count"),),
            advice="Take cudaHostAlloc here.",
        )
    ]  # fmt: skip


def _recommended(best: StrategyCell, usual: StrategyCell | None) -> list[Finding]:
    if usual is None:
        return []
    gain = usual.total_seconds.median / best.total_seconds.median
    size = format_bytes(best.bytes)
    evidence = (
        Quantity(name="One cudaHostAlloc", value=usual.total_seconds.median, unit="seconds"),
        Quantity(name=TITLES[best.strategy], value=best.total_seconds.median, unit="seconds"),
        Quantity(name="Longest neighbour wait, cudaHostAlloc", value=usual.longest_wait, unit="seconds"),
        Quantity(name="Longest neighbour wait, best", value=best.longest_wait, unit="seconds"),
    )
    if gain < WORTH_IT:
        return [
            Finding(
                rule="usual-is-fast", severity="good",
                title=f"cudaHostAlloc pins {size} about as fast as anything else here",
                detail="No strategy is clearly faster.", evidence=evidence, advice="Nothing to do.",
            )
        ]  # fmt: skip
    chunk = f', chunk="{exact_bytes(best.chunk_bytes)}"' if best.chunk_bytes else ""
    return [
        Finding(
            rule="faster-strategy", severity="warning",
            title=f"{size} can be pinned {gain:.1f} times faster than by one cudaHostAlloc",
            detail=f"Best here: {TITLES[best.strategy]}, {best.threads} threads. The time goes into faulting and "
            "zeroing pages, which several threads do at once, and with huge pages in larger steps.",
            evidence=evidence,
            advice=f'Call pinscope.pinned_empty("{exact_bytes(best.bytes)}"{chunk}), or paste the code.',
            code=recipe(best),
        )
    ]  # fmt: skip


def _any_copy(whole: StrategyCell | None, best: StrategyCell, usual: StrategyCell | None) -> list[Finding]:
    """The best that leaves no boundary, where the best of all does."""
    if whole is None or usual is None or best.chunk_bytes is None or whole.strategy == USUAL:
        return []
    gain = usual.total_seconds.median / whole.total_seconds.median
    return [
        Finding(
            rule="faster-any-copy", severity="note",
            title=f"Pinned in one piece it is {gain:.1f} times faster than one cudaHostAlloc, and any copy works",
            detail=f"{TITLES[whole.strategy]}: {format_seconds(whole.total_seconds.median)}; neighbours wait up to "
            f"{format_seconds(whole.longest_wait)}, because one call maps everything.",
            evidence=(
                Quantity(name=TITLES[whole.strategy], value=whole.total_seconds.median, unit="seconds"),
                Quantity(name="Longest neighbour wait", value=whole.longest_wait, unit="seconds"),
            ),
            advice=f'Where copies have any size and place: pinscope.pinned_empty("{exact_bytes(whole.bytes)}"), or '
            "paste the code.",
            code=recipe(whole),
        )
    ]  # fmt: skip


def _waits(cells: Cells, best: StrategyCell) -> list[Finding]:
    worst = max(_strategies(cells), key=lambda cell: cell.longest_wait)
    if worst.longest_wait < LONG_WAIT:
        return []
    idle = cells.get(IDLE)
    call = max(worst.waits, key=lambda name: worst.waits[name])
    return [
        Finding(
            rule="neighbours-wait", severity="warning",
            title=f"Pinning {format_bytes(worst.bytes)} held another process's {call} for "
            f"{format_seconds(worst.longest_wait)}",
            detail=f"During: {TITLES[worst.strategy]}. While one call pins a lot, the driver holds a lock that other "
            "processes on the GPU need, also for monitoring; in chunks it lets them in between.",
            evidence=(
                Quantity(name="Longest wait", value=worst.longest_wait, unit="seconds"),
                Quantity(name=f"With {TITLES[best.strategy]}", value=best.longest_wait, unit="seconds"),
                *((Quantity(name="Idle", value=idle.longest_wait, unit="seconds"),) if idle else ()),
            ),
            advice="Pin and free large buffers in chunks, or before others start working; freeing holds them as long.",
        )
    ]  # fmt: skip


def _crossing(cells: Cells) -> list[Finding]:
    refused = [cell for cell in _strategies(cells) if cell.crossing_copies is False]
    if not refused:
        return []
    chunk = format_bytes(refused[0].chunk_bytes)
    return [
        Finding(
            rule="copies-refused-across-chunks", severity="warning",
            title="A copy across the boundary of two registered chunks is refused",
            detail="CUDA answers cudaErrorInvalidValue (invalid argument), although CUDA calls both sides pinned; "
            "kernels may cross.",
            evidence=(
                Quantity(name="Chunk", value=refused[0].chunk_bytes, unit="bytes"),
                Quantity(name="Strategies affected", value=len(refused), unit="count"),
            ),
            advice=f"Keep each copy within a multiple of the chunk ({chunk} here), for instance by making the chunk a "
            "multiple of your block, or pin in one piece.",
        )
    ]  # fmt: skip
