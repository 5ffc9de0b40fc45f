"""What to do about calls that wait, and whether the chunk found at run time did."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pinscope.analysis.pinning_strategy import NOT_PINNED, Wait, cause, not_pinned
from pinscope.analysis.statistics import measured, ratio
from pinscope.analysis.texts import Costed, Text, Texts, saying
from pinscope.experiments.while_serving.reading import AUTO, IDLE, TAKEN, TOUCH, Cell, Serving
from pinscope.records.run import Quantity, quantity
from pinscope.units import exact_bytes

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
_WHY = (
    "[ When threads only touch the same amount of memory, calls take up to {driver:seconds}, so it is the driver that "
    "makes calls wait.][ When threads only touch the same amount of memory, calls take up to {busy:seconds}: the cause "
    "may be busy processors or Python's interpreter lock, not the driver.]"
)
_COST = (
    "Pinning {auto.bytes:bytes} takes {auto.total_seconds.median:seconds}[, by {fastest.title} "
    "{fastest.total_seconds.median:seconds} with calls of up to {fastest.longest_wait.seconds:seconds}]. It tries "
    "chunk lengths as it pins; longest calls of so few repeats are partly chance."
)
TEXTS: Texts = {
    **NOT_PINNED,
    "own-calls-wait": Text(
        when="a call of the process takes longer than the limit while one call pins or frees all memory",
        title="{wait.name} of the process took {wait.seconds:seconds} while [{taken} pinned {naive.bytes:bytes}]"
        "[{naive.bytes:bytes} of {given_back} were given back] ({naive.total_seconds.count:repeats})",
        detail="The thread that pins stops for {naive.total_seconds.median:seconds} itself." + _WHY,
        advice="Pin before the program starts to serve.[ If that is not possible, call pinned_empty({gentle.title}) "
        "from another thread, as the code does, and keep each copy inside one chunk, of pool.chunk bytes.]",
    ),
    "auto-beyond-limit": Text(
        when='a call takes longer than the limit while pinned_empty(chunk="auto") pins',
        title='{wait.name} took {wait.seconds:seconds} with pinned_empty(chunk="auto"), longer than the limit of '
        "{limit:seconds}",
        detail=_COST + _WHY,
        advice="Pass half of the limit as longest_wait, or pin before the program serves.",
        severity="warning",
    ),
    "auto-keeps-limit": Text(
        when='no call takes longer than the limit while pinned_empty(chunk="auto") pins, but some while one call does',
        title='With pinned_empty(chunk="auto") no call took longer than {wait.seconds:seconds} in '
        "{auto.total_seconds.count:repeats}; the limit is {limit:seconds}",
        detail=_COST,
        advice="Where a program must pin while it serves, pin so: {naive.title} made a call wait "
        "{naive.longest_wait.seconds:seconds}.",
        severity="good",
    ),
}
say = saying(TEXTS)


def code(nbytes: int, limit: float) -> str:
    """Pins so much beside a program that serves; needs CuPy and PinScope."""
    return _CODE.format(size=exact_bytes(nbytes), limit=limit)


def _one_piece(serving: Serving) -> Iterator[Costed]:
    """How long calls wait while one call pins or frees everything."""
    naive = serving.in_one_piece
    if naive is None or naive.longest_wait.seconds <= serving.limit:
        return
    wait, cost = naive.longest_wait, naive.longest_wait.seconds / serving.limit
    gentle = serving.gentle if serving.way(AUTO) else None
    yield say(
        "own-calls-wait",
        *_waits(naive, *map(serving.way, (AUTO, TOUCH, IDLE))),
        cost=cost,
        severity="by cost",
        code=code(naive.bytes, serving.limit) if gentle else None,
        naive=naive,
        gentle=gentle,
        wait=wait,
        taken=naive.title if wait.phase == TAKEN else None,
        given_back=None if wait.phase == TAKEN else naive.title,
        **_why(serving, wait),
    )


def _why(serving: Serving, wait: Wait) -> dict[str, Any]:
    """Whether the driver makes calls wait, by what they wait while memory is only touched."""
    touch = serving.way(TOUCH)
    return cause(wait.seconds, touch.longest_wait.seconds if touch else None)


def _auto(serving: Serving) -> Iterator[Costed]:
    """Whether the chunk that is found at run time keeps to the limit, and what it costs."""
    auto, fastest, limit = serving.way(AUTO), serving.fastest, serving.limit
    if auto is None or fastest is None or not auto.pins:
        return
    wait, beyond = auto.longest_wait, auto.longest_wait.seconds > limit
    if not beyond and not serving.gentle:
        return
    compared = [auto] if auto is fastest else [auto, fastest]
    yield say(
        "auto-beyond-limit" if beyond else "auto-keeps-limit",
        *_waits(auto),
        quantity("The limit", limit, "seconds"),
        quantity('Chunk of chunk="auto"', auto.chunk_bytes, "bytes", reason="memory cannot be registered here"),
        *(measured(f"Time, {cell.title}", cell.total_seconds, "seconds") for cell in compared),
        *_waits(*compared[1:]),
        cost=wait.seconds / limit if beyond else ratio(auto.total_seconds, fastest.total_seconds),
        auto=auto,
        naive=serving.in_one_piece,
        wait=wait,
        limit=limit,
        fastest=None if auto is fastest else fastest,
        **_why(serving, wait),
    )


def _waits(*cells: Cell | None) -> Iterator[Quantity]:
    for cell in filter(None, cells):
        yield quantity(f"Longest call, {cell.title}: {cell.longest_words}", cell.longest_wait.seconds, "seconds")


RULES = (not_pinned, _one_piece, _auto)
