"""What the staging experiment found out. The texts stand first; the functions below give them their numbers."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files

from pinscope.analysis.cells import AS_GOOD_WORDS
from pinscope.analysis.statistics import measured, ratio
from pinscope.analysis.texts import Costed, Text, Texts, saying, times
from pinscope.experiments.staging.reading import Staging
from pinscope.experiments.staging.ways import MOST_SLOTS, SLOTS, WAYS
from pinscope.records.run import quantity
from pinscope.units import format_bytes

_AS_GOOD = (
    f"{AS_GOOD_WORDS} Of these the one with least processor time is named first. The first table has the fastest ways "
    "of each size and number of uses."
)
TEXTS: Texts = {
    "staging-fastest": Text(
        when="a way from pageable memory takes less time than a plain copy",
        title="A plain copy of {staging.size:bytes} takes {longer} as long as {best.phrase}: "
        "{plain.bytes_per_second:rate}, not {best.bytes_per_second:rate}",
        detail=_AS_GOOD,
        advice="For {wins:and}[, with {threads:threads}]: {advice}[ For {staging.size:bytes} {ties:and} will do as "
        "well.]",
    ),
    "staging-fastest/none": Text(
        when="no other way from pageable memory takes less time than a plain copy",
        title="No way is known to bring {staging.size:bytes} to the GPU faster than a plain copy: "
        "{plain.bytes_per_second:rate}",
        detail=_AS_GOOD,
        advice="Use a plain copy.",
    ),
    "staging-pin-to-copy": Text(
        when="to allocate pinned memory for one copy takes longer than a plain copy",
        title="A new pinned buffer to copy {staging.size:bytes} once takes {longer} as long as a plain copy"
        "[, {in_place} in place takes less]",
        detail="Of {pin.seconds:seconds}, {pin.prepare_seconds:seconds} go into allocating and filling the buffer "
        "and {pin.finish_seconds:seconds} into freeing it.[ To register, copy "
        "and unregister takes {register.seconds:seconds}, a plain copy {plain.seconds:seconds}.]",
        advice="Allocate no pinned memory to copy data once that lies in pageable memory: keep a pinned buffer and use "
        "it again[, or {in_its_place} where it lies].",
    ),
    "staging-reuse": Text(
        when="the same data was copied several times, plainly and from pinned memory",
        title="{staging.size:bytes} copied {most} times: plain copies take {longer} as long as {best.phrase}",
        detail="Faster than plain copies, computed from the times of one use: {paid:and}.",
        advice="Keep data that is copied again in pinned memory; make it there if you can.",
    ),
    "staging-fresh": Text(
        when="a copy from the GPU into fresh memory takes longer than into memory that was written before",
        title="{staging.size:bytes} from the GPU comes at {fresh.bytes_per_second:rate} into fresh memory, at "
        "{kept.bytes_per_second:rate} into memory written before[, at {pinned.bytes_per_second:rate} into pinned]",
        detail="Nobody has touched fresh memory: the kernel hands out and clears each page in the middle of the copy.",
        advice="Keep the destination and copy into it again, as kept.copy_(tensor) and array.get(out=kept) do; "
        "tensor.cpu() and cupy.asnumpy take new memory each time.[ Into a pinned buffer that is kept copies are faster "
        "still: {faster.bytes_per_second:rate}.]",
    ),
    "staging-ring": Text(
        when="draining a ring of pinned buffers brings data from the GPU to kept memory faster than a plain copy",
        title="A plain copy from the GPU takes {longer} as long as {ring.cell.phrase}, drained: "
        "{kept.bytes_per_second:rate}, not {ring.cell.bytes_per_second:rate}",
        detail="Both bring {staging.size:bytes} to memory written before.[ Slower of the ring's halves, each measured "
        "beside the other: {ring.known_slower.phrase}, {ring.known_slower.bytes_per_second:rate}.]",
        advice="Let each of {ring.cell.threads:threads} drain small pinned buffers of its own in turn, each once its "
        "copy is done (an event says so), and copy into it again once it is drained.",
    ),
    "staging-ring-halves": Text(
        when="copying from the GPU into a ring and draining it slow each other",
        title="Beside the other half of a drained ring, {slowed:and} as long as alone",
        detail="The ring brings {staging.size:bytes} at {ring.cell.bytes_per_second:rate}[; its slower half beside the "
        "other, {ring.known_slower.phrase}, reaches {ring.known_slower.bytes_per_second:rate}]. Each half was measured "
        "beside the other at full speed, which may take longer than the ring, where they wait for one another.",
        advice="Plan with the rate of the ring. Where the worker can, use results in the pinned buffer instead of "
        "copying them out.",
    ),
}
say = saying(TEXTS)
_ADVICE = {
    "two_buffers": "keep two small pinned buffers for each thread, use them in turn, each once its last copy is done "
    "(an event says so), and pin no new buffer for each copy.",
    "reused_buffer": "keep one pinned buffer and let the threads fill it.",
    "register": "register the memory where it lies, copy it and unregister it.",
    "torch_pin_then_to": "call tensor.pin_memory().to(device, non_blocking=True) again and again with sizes that "
    "repeat, so that PyTorch finds pinned memory that it has kept.",
}


def _fastest(staging: Staging) -> Iterator[Costed]:
    """Which way to take for data that lies in pageable memory and is used once."""
    plain, winners = staging.ways.get("plain"), staging.winners(uses=1)
    if plain is None or not any("choice" in WAYS[way].kinds for way in staging.ways.keys() - {"plain"}):
        return
    best, better = winners[0], plain.is_slower_than(winners[0])
    size, compared = format_bytes(staging.size), [*winners, plain] if better else [plain, *winners]
    yield say(
        "staging-fastest" if better else "staging-fastest/none",
        *(measured(f"{cell.title}, {size} once", cell.wall_seconds, "seconds") for cell in compared),
        durations=plain.beside(best),
        severity="by cost" if better else None,
        code=code(best.way, best.threads, staging.chunk_bytes) if better else None,
        staging=staging,
        plain=plain,
        best=best,
        wins=[format_bytes(at) for at in staging.sizes if _wins(staging, best.way, at)],
        threads=best.threads if "threads" in WAYS[best.way].kinds else None,
        advice=_ADVICE.get(best.way, f"use {best.phrase}."),
        ties=[cell.phrase for cell in winners[1:]] or None,
    )


def _wins(staging: Staging, way: str, size: int) -> bool:
    """Whether no other way beats it at this size, and it beats a plain copy."""
    own = next((cell for cell in staging.winners(size, uses=1) if cell.way == way), None)
    plain = staging.at(size, uses=1).get("plain")
    return bool(own and plain and plain.is_slower_than(own))


def code(way: str, threads: int = 1, chunk: int = 0) -> str | None:
    """Code that brings data to the GPU in this way, which a GPU test runs; ``None`` where there is none to paste."""
    texts = files(__package__).joinpath("code_ways.py").read_text("utf-8").split("\n# part: ")
    parts = dict(text.split("\n", 1) for text in texts[1:])
    text = parts.get({"reused_buffer": "two_buffers", "ring_four": "ring_two"}.get(way, way))
    slots = MOST_SLOTS if way == "ring_four" else SLOTS
    pinned = format_bytes(slots * threads * chunk)
    return text and text.format(threads=threads, chunk=chunk, pinned=pinned, slots=slots)


def _pin_to_copy(staging: Staging) -> Iterator[Costed]:
    """What the PyTorch tutorial on pin_memory warns of: allocating pinned memory only to copy."""
    ways = staging.ways
    plain, pin = ways.get("plain"), ways.get("pin_then_copy")
    if plain is None or pin is None or not pin.is_slower_than(plain):
        return
    register = ways.get("register")
    if register and not plain.is_slower_than(register):
        register = None
    compared = filter(None, (pin, plain, register))
    yield say(
        "staging-pin-to-copy",
        *(measured(cell.title, cell.wall_seconds, "seconds") for cell in compared),
        durations=pin.beside(plain),
        in_its_place=register and "register the data",
        in_place=register and "registering",
        staging=staging,
        pin=pin,
        plain=plain,
        register=register,
    )


def _fresh(staging: Staging) -> Iterator[Costed]:
    """What the kernel adds to a copy from the GPU into memory that nobody has touched."""
    fresh, kept, pinned = map(staging.ways.get, ("back_fresh", "back_plain", "back_pinned"))
    if fresh is None or kept is None or not fresh.is_slower_than(kept):
        return
    pinned = pinned if pinned and pinned.wall_seconds.is_known else None
    cells = [cell for cell in (fresh, kept, pinned) if cell]
    yield say(
        "staging-fresh",
        *(measured(cell.title, cell.wall_seconds, "seconds") for cell in cells),
        durations=fresh.beside(kept),
        severity="by cost",
        staging=staging,
        fresh=fresh,
        kept=kept,
        pinned=pinned,
        faster=pinned if pinned and kept.is_slower_than(pinned) else None,
    )


def _ring(staging: Staging) -> Iterator[Costed]:
    """What a worker gains that drains pinned buffers while others are filled."""
    ring, kept = staging.ring, staging.ways.get("back_plain")
    if ring is None or kept is None or not kept.is_slower_than(ring.cell):
        return
    yield say(
        "staging-ring",
        *(measured(cell.title, cell.wall_seconds, "seconds") for cell in (ring.cell, kept, *ring.beside)),
        durations=kept.beside(ring.cell),
        severity="by cost",
        code=code(ring.cell.way, ring.cell.threads, staging.chunk_bytes),
        staging=staging,
        ring=ring,
        kept=kept,
    )


def _halves(staging: Staging) -> Iterator[Costed]:
    """What the halves of a ring cost each other."""
    ring = staging.ring
    if ring is None:
        return
    evidence = [
        measured(cell.title, cell.wall_seconds, "seconds") for cell in (ring.cell, *ring.beside, *ring.alone.values())
    ]
    if ring.slowed:
        pairs = {WAYS[cell.way].words: cell.beside(alone) for cell, alone in ring.slowed}
        slowed = [f"{name} takes {times(ratio(*pair), *pair)}" for name, pair in pairs.items()]
        cost = max(ratio(*pair) for pair in pairs.values())
        yield say("staging-ring-halves", *evidence, cost=cost, slowed=slowed, staging=staging, ring=ring)


def _reuse(staging: Staging) -> Iterator[Costed]:
    """From how many uses of the same data each way is faster than plain copies."""
    most = max(staging.uses(staging.size))
    ways, again, plain = staging.ways, staging.at(uses=most), staging.ways.get("plain")
    names = ("in_place", "register", "reused_buffer", "pin_then_copy", "plain")
    ranked = sorted((again[way] for way in names if way in again), key=lambda cell: cell.seconds)
    paid = [(ways[way], ways[way].paid_after(plain)) for way in names[1:4] if plain and way in ways]
    if not paid or most < 2 or "plain" not in again or len(ranked) < 2:
        return
    if not again["plain"].is_slower_than(ranked[0]):
        return
    why = "its copies are not faster"
    yield say(
        "staging-reuse",
        *(quantity(f"{cell.title}: pays from so many uses", uses, "count", reason=why) for cell, uses in paid),
        *(measured(f"{cell.title}, {most} uses", cell.wall_seconds, "seconds") for cell in ranked),
        durations=again["plain"].beside(ranked[0]),
        code=code("in_place"),
        staging=staging,
        most=most,
        best=ranked[0],
        paid=[f"{cell.title} {_from(uses)}" for cell, uses in paid],
    )


def _from(uses: int | None) -> str:
    return "never" if uses is None else "from the first use on" if uses == 1 else f"from about {uses} uses on"


RULES = (_fastest, _pin_to_copy, _reuse, _fresh, _ring, _halves)
