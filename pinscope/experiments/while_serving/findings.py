"""What to do about calls that wait, and whether the chunk found at run time did."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pinscope.analysis.conclusions import Costed, dearest_first
from pinscope.experiments.while_serving.arithmetic import (
    AUTO,
    IDLE,
    TAKEN,
    TOUCH,
    Cell,
    Wait,
    fastest,
    in_one_piece,
    of_way,
    slower,
)
from pinscope.records.finding import Finding, Quantity, costing, critical, finding, good, note, quantity, warning
from pinscope.units import exact_bytes, format_bytes, format_seconds

DEAR = 1.3
"""From this many times the fastest way on, keeping to the limit costs time that is worth a remark."""
SCHEDULING = 0.5
"""From this part of a wait on, waiting for a processor or for Python may explain it."""
_CODE = """\
from concurrent.futures import ThreadPoolExecutor

import cupy
import pinscope

background = ThreadPoolExecutor(1)
pinning = background.submit(
    pinscope.pinned_empty, "{size}", chunk="auto", longest_wait={limit:g}, device=cupy.cuda.runtime.getDevice()
)
# … go on serving; pinning.done() says when the memory is there
pool = pinning.result()
# A copy must not cross a multiple of pool.chunk bytes: CUDA refuses it (cudaErrorInvalidValue).
"""


def while_serving_findings(found: Sequence[Cell], limit: float) -> tuple[Finding, ...]:
    """The gravest first."""
    return dearest_first([*_not_pinned(found), *_one_piece(found, limit), *_auto(found, limit)])


def code(nbytes: int, limit: float) -> str:
    """Pins so much beside a program that serves; needs CuPy and PinScope."""
    return _CODE.format(size=exact_bytes(nbytes), limit=limit)


def _not_pinned(found: Sequence[Cell]) -> Iterator[Costed]:
    wrong = [cell for cell in found if cell.pinned is False]
    if wrong:
        yield (
            1.0,
            critical(
                "not-pinned",
                quantity("Ways affected", len(wrong), "count"),
                title="CUDA does not treat registered memory as pinned",
                detail=f"Affected: {'; '.join(cell.title for cell in wrong)}. On systems on which the GPU uses the "
                "host's page tables, registering does not page-lock.",
                advice="Pin with cudaHostAlloc here, before the program serves.",
            ),
        )


def _one_piece(found: Sequence[Cell], limit: float) -> Iterator[Costed]:
    """How long calls wait while one call pins or frees everything."""
    naive = in_one_piece(found)
    if naive is None:
        return
    wait, size = naive.longest, format_bytes(naive.bytes)
    evidence = (*_waits([naive, of_way(found, AUTO), of_way(found, TOUCH), of_way(found, IDLE)]),)
    done = f"{naive.title} pinned {size}" if wait.phase == TAKEN else f"{size} of {naive.title} were given back"
    title = f"{wait.name.capitalize()} of the process took {format_seconds(wait.seconds)} while {done}"
    if wait.seconds <= limit:
        yield (
            1.0,
            good(
                "own-calls-hardly-wait",
                *evidence,
                title=title,
                detail=f"The limit is {format_seconds(limit)}. {_why(found, wait)}",
            ),
        )
        return
    times = wait.seconds / limit
    yield (
        times,
        finding(
            costing(times),
            "own-calls-wait",
            *evidence,
            title=title,
            detail=f"{_why(found, wait)} The thread that pins stops for {format_seconds(naive.seconds.median)} itself.",
            advice='Pin before the program starts to serve. If that is not possible, call pinned_empty(chunk="auto") '
            "from "
            "another thread, as the code does: it pins in chunks whose length it finds at run time. Keep each copy "
            "inside one chunk, of pool.chunk bytes.",
            code=code(naive.bytes, limit),
        ),
    )


def _why(found: Sequence[Cell], wait: Wait) -> str:
    """Whether the driver makes calls wait, by what they wait while memory is only touched."""
    touch = of_way(found, TOUCH)
    late = max((one.seconds for one in touch.waits), default=None) if touch else None
    if late is None:
        return "Without the control run that only touches memory, the cause is not known: the driver or the processors."
    control = f"When threads only touch the same amount of memory, calls take up to {format_seconds(late)}"
    if late >= SCHEDULING * wait.seconds:
        return f"{control}: the cause may be busy processors or Python's interpreter lock, not the driver."
    return f"{control}, so it is the driver that makes calls wait."


def _auto(found: Sequence[Cell], limit: float) -> Iterator[Costed]:
    """Whether the chunk that is found at run time keeps to the limit, and what it costs."""
    auto, best = of_way(found, AUTO), fastest(found)
    if auto is None or best is None or not auto.pins:
        return
    wait, times = auto.longest, slower(auto, found) or 1.0
    compared = [auto] if auto is best else [auto, best]
    evidence = (
        *_waits([auto]),
        quantity("The limit", limit, "seconds"),
        quantity('Chunk of chunk="auto"', auto.chunk_bytes, "bytes", reason="memory cannot be registered here"),
        *(quantity(f"Time, {cell.title}", cell.seconds.median, "seconds") for cell in compared),
    )
    cost = _cost(auto, found)
    title = f'With pinned_empty(chunk="auto") no call took longer than {format_seconds(wait.seconds)}'
    if wait.seconds > limit:
        yield (
            wait.seconds / limit,
            warning(
                "auto-beyond-limit",
                *evidence,
                title=f"{wait.name.capitalize()} took {format_seconds(wait.seconds)} with "
                f'pinned_empty(chunk="auto"), longer than the limit of {format_seconds(limit)}',
                detail=f"{cost} {_why(found, wait)}",
                advice="Pass half of the limit as longest_wait, or pin before the program serves.",
            ),
        )
    elif times > DEAR:
        yield (
            times,
            note(
                "auto-costs-time",
                *evidence,
                title=f"{title}, but pinning takes {times:.2f} times as long as the fastest way",
                detail=cost,
                advice="Pass a larger longest_wait if the program allows it: chunks get longer.",
            ),
        )
    else:
        yield (
            times,
            good(
                "auto-keeps-limit",
                *evidence,
                title=f"{title}; the limit is {format_seconds(limit)}",
                detail=cost,
                advice="Pin so where a program must pin while it serves.",
            ),
        )


def _cost(cell: Cell, found: Sequence[Cell]) -> str:
    """A sentence on the time that the way takes, beside the fastest."""
    best = fastest(found)
    beside = (
        f"{slower(cell, found):.2f} times as long as the fastest way ({best.title})"
        if best and best is not cell
        else "no other way is faster"
    )
    return f"Pinning {format_bytes(cell.bytes)} takes {format_seconds(cell.seconds.median)}, {beside}."


def _waits(shown: Sequence[Cell | None]) -> Iterator[Quantity]:
    for cell in shown:
        if cell is not None:
            yield quantity(f"Longest call, {cell.title}: {cell.longest_words}", cell.longest.seconds, "seconds")
