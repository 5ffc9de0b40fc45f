"""What the staging experiment found out, each finding with what it costs to ignore it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pinscope.analysis.conclusions import Costed, dearest_first, exceeds, joined
from pinscope.analysis.precision import Repeated, precision_not_reached
from pinscope.analysis.statistics import measured
from pinscope.experiments.staging.arithmetic import (
    BY_THREADS,
    CHOICES,
    HALVES,
    Cell,
    as_good,
    by_way,
    numbers_of_uses,
    phrase,
    sizes,
    slower,
    times_words,
    uses_until_paid,
    usual_size,
    winners,
)
from pinscope.experiments.staging.code_to_paste import code_for, kept
from pinscope.records.finding import COSTLY, Finding, finding, note, quantity, wrong_data
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bandwidth, format_bytes, format_seconds

HUNDREDTH = 0.01
"""Copies that take at most this share of the processor time of plain ones are said to leave the CPU alone."""


def staging_findings(run: ExperimentRun, found: Sequence[Cell]) -> tuple[Finding, ...]:
    """All findings of a run."""
    return dearest_first(
        [
            *_wrong(found),
            *_fastest(run, found),
            *_pin_to_copy(found),
            *_reuse(found),
            *_processor(found),
            *((1.0, late) for late in precision_not_reached(run, _repeated(found))),
        ]
    )


def _wrong(found: Sequence[Cell]) -> Iterator[Costed]:
    wrong = [cell for cell in found if cell.wrong]
    if wrong:
        first = wrong[0]
        yield (
            1.0,
            wrong_data(
                "staging-wrong",
                quantity("Wrong repeats", sum(cell.wrong for cell in wrong), "count"),
                title="Data arrived wrong",
                detail=f"The first case: {first.title}, {format_bytes(first.bytes)}.",
            ),
        )


def _fastest(run: ExperimentRun, found: Sequence[Cell]) -> Iterator[Costed]:
    """Which way to take for data that lies in pageable memory and is used once."""
    size = usual_size(found)
    ways, ranked = by_way(found, size), winners(found, size)
    plain = ways.get("plain")
    if plain is None or not set(CHOICES) & (ways.keys() - {"plain"}):
        return
    best, cost = ranked[0], slower(plain, ranked[0])
    evidence = [
        measured(f"{cell.title}, {format_bytes(size)} once", cell.wall_seconds, "seconds") for cell in (*ranked, plain)
    ]
    by_size = "; ".join(f"{format_bytes(each)}: {_winner_words(found, each)}" for each in sizes(found))
    better = not as_good(plain, best) and exceeds(plain.wall_seconds, best.wall_seconds)
    yield (
        cost,
        finding(
            "warning" if better and cost >= COSTLY else "note",
            "staging-fastest",
            *dict.fromkeys(evidence),
            title=f"A plain copy of {format_bytes(size)} takes {times_words(cost)} as long as {phrase(best)}: "
            f"{format_bandwidth(plain.bytes_per_second)}, not {format_bandwidth(best.bytes_per_second)}"
            if better
            else f"No way is known to bring {format_bytes(size)} to the GPU faster than a plain copy: "
            f"{format_bandwidth(plain.bytes_per_second)}",
            detail=f"Fastest for data that is used once, by size: {by_size}. Ways within "
            "10 % of the fastest are as good; named first is what takes least processor time.",
            advice=_advice(best if better else plain),
            code=code_for(best.way, best.threads, int(run.params.get("chunk", 2**23))) if better else None,
        ),
    )


def _winner_words(found: Sequence[Cell], size: int) -> str:
    best = winners(found, size)
    return f"{' or '.join(phrase(cell) for cell in best[:3])} ({format_bandwidth(best[0].bytes_per_second)})"


_ADVICE = {
    "two_buffers": "Keep two small pinned buffers for each copying thread, use them in turn, each once its last copy "
    "is done (an event says so), and pin no new buffer for each copy.",
    "reused_buffer": "Keep one pinned buffer and let several threads fill it.",
    "register": "Register the memory where it lies, copy it and unregister it.",
    "torch_pin_then_to": "Call tensor.pin_memory().to(device, non_blocking=True) again and again with sizes that "
    "repeat, so that PyTorch finds pinned memory that it has kept.",
}


def _advice(best: Cell) -> str:
    return _ADVICE.get(best.way, "Use a plain copy.")


def _pin_to_copy(found: Sequence[Cell]) -> Iterator[Costed]:
    """What the PyTorch tutorial on pin_memory warns of: allocating pinned memory only to copy."""
    size = usual_size(found)
    ways = by_way(found, size)
    plain, pin = ways.get("plain"), ways.get("pin_then_copy")
    if plain is None or pin is None or as_good(pin, plain) or not exceeds(pin.wall_seconds, plain.wall_seconds):
        return
    cost = slower(pin, plain)
    copies = pin.wall_seconds.median - pin.prepare_seconds - pin.finish_seconds
    others = "".join(
        f" {words} takes {times_words(slower(ways[way], ways[beside]))} as long as {than}."
        for way, words, beside, than in _BESIDE
        if way in ways and beside in ways
    )
    yield (
        cost,
        note(
            "staging-pin-to-copy",
            measured("Pin, then copy", pin.wall_seconds, "seconds"),
            measured("Plain copy", plain.wall_seconds, "seconds"),
            title=f"Allocating a pinned buffer to copy {format_bytes(size)} once takes {times_words(cost)} as long as "
            "a plain copy",
            detail=f"Of {format_seconds(pin.wall_seconds.median)}, {format_seconds(pin.prepare_seconds)} go into "
            f"allocating and filling the buffer, {format_seconds(copies)} into the copy and "
            f"{format_seconds(pin.finish_seconds)} into freeing it.{others}",
            advice="Do not allocate pinned memory for one copy: keep a pinned buffer and use it again.",
        ),
    )


_BESIDE = (
    ("register", "Registering the memory where it lies", "plain", "a plain copy"),
    ("torch_pin_then_to_first", "PyTorch: pin_memory().to() in newly pinned memory", "torch_to", "to()"),
    ("torch_pin_then_to", "PyTorch: pin_memory().to() in memory that it has kept pinned", "torch_to", "to()"),
)
"""Ways that also pin, and the way that each is beside."""


def _reuse(found: Sequence[Cell]) -> Iterator[Costed]:
    """From how many uses of the same data each way is faster than plain copies."""
    size = usual_size(found)
    ways = by_way(found, size)
    plain, most = ways.get("plain"), max(numbers_of_uses([cell for cell in found if cell.bytes == size]))
    pinning = [ways[way] for way in ("register", "reused_buffer", "pin_then_copy") if way in ways]
    if plain is None or not pinning or most < 2:
        return
    paid = [(cell, uses_until_paid(cell, plain)) for cell in pinning]
    again = by_way(found, size, most)
    shown = [again[way] for way in ("in_place", "register", "reused_buffer", "pin_then_copy", "plain") if way in again]
    if "plain" not in again or len(shown) < 2:
        return
    ranked = sorted(shown, key=lambda cell: cell.wall_seconds.median)
    cost = slower(again["plain"], ranked[0])
    yield (
        cost,
        note(
            "staging-reuse",
            *(
                quantity(f"{cell.title}: pays from so many uses", uses, "count", reason="its copies are not faster")
                for cell, uses in paid
            ),
            *(measured(f"{cell.title}, {most} uses", cell.wall_seconds, "seconds") for cell in ranked),
            title=f"{format_bytes(size)} that is copied {most} times: plain copies take {times_words(cost)} as long as "
            f"{phrase(ranked[0])}",
            detail=f"Faster than plain copies: {joined([_paid_words(cell, uses) for cell, uses in paid])}. {most} uses "
            f"take {joined([f'{format_seconds(cell.wall_seconds.median)} ({cell.title})' for cell in ranked])}.",
            advice="Keep data that is copied again in pinned memory; make it there if you can.",
            code=kept(),
        ),
    )


def _paid_words(cell: Cell, uses: int | None) -> str:
    how = "never" if uses is None else "from the first use on" if uses == 1 else f"from about {uses} uses on"
    return f"{cell.title} {how}"


def _processor(found: Sequence[Cell]) -> Iterator[Costed]:
    """What "without CPU intervention" comes to."""
    size = usual_size(found)
    ways = by_way(found, size)
    plain, pinned, spinning = (ways.get(way) for way in ("plain", "in_place", "in_place_spin"))
    if plain is None or pinned is None:
        return
    share = pinned.cpu_seconds / plain.cpu_seconds if plain.cpu_seconds else 1.0
    spin = f" A wait that spins, as CUDA does by default: {_processor_time(spinning)}." if spinning else ""
    least = [
        each
        for each in sizes(found)
        if (pair := by_way(found, each)).keys() >= {"plain", "in_place"}
        and pair["in_place"].cpu_seconds <= HUNDREDTH * pair["plain"].cpu_seconds
    ]
    from_size = f" From {format_bytes(min(least))} on it is at most a hundredth of a plain copy's." if least else ""
    best = winners(found, size)[0]
    yield (
        1.0,
        finding(
            "good" if share <= HUNDREDTH else "note",
            "staging-processor",
            quantity(f"Processor time of a copy of {format_bytes(size)}, plain", plain.copy_cpu_seconds, "seconds"),
            quantity(f"Processor time of a copy of {format_bytes(size)}, pinned", pinned.copy_cpu_seconds, "seconds"),
            quantity("Their ratio", share, "share"),
            title=f"A copy of {format_bytes(size)} from pinned memory takes {_processor_time(pinned)} of processor "
            f"time, a plain copy {_processor_time(plain)}",
            detail=f"That is of all threads of the process, also the driver's.{from_size}{spin} The fastest way from "
            f"pageable memory, {phrase(best)}, takes {_processor_time(best)}.",
            advice="Wait for copies with events that let the thread sleep (cudaEventBlockingSync).",
            code=kept(),
        ),
    )


def _processor_time(cell: Cell) -> str:
    return format_seconds(cell.copy_cpu_seconds)


def _repeated(found: Sequence[Cell]) -> list[Repeated]:
    size = usual_size(found)
    behind = {id(cell) for cell in by_way(found, size).values() if cell.way in (*CHOICES, "in_place")}
    return [
        Repeated(
            f"{cell.title}, {format_bytes(cell.bytes)}, {cell.uses} use{'' if cell.uses == 1 else 's'}",
            cell.wall_seconds,
            (
                f"ways={cell.way}",
                f"sizes={format_bytes(cell.bytes).replace(' ', '')}",
                f"uses={cell.uses}",
                *([f"threads={cell.threads}"] if cell.way in BY_THREADS else []),
            ),
            headline=id(cell) in behind,
        )
        for cell in found
        if cell.way not in HALVES
    ]
