"""What the allocation experiment found out, each finding with what it costs to ignore it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pinscope.analysis.cells import of_kind
from pinscope.analysis.statistics import exceeds, measured, ratio
from pinscope.analysis.texts import Costed, Text, joined, roughly, saying
from pinscope.experiments.allocation.reading import BreakEven, Buffers, needed_faults, pool_words
from pinscope.experiments.allocation.ways import BASE, WAYS
from pinscope.records.run import quantity
from pinscope.units import format_bytes, format_count, format_seconds

MANY_COPIES = 10
"""A buffer that pays only after more copies than this should be kept, not made anew."""
POOL_SAVES = 2.0
"""A pool is worth naming when a fresh buffer costs at least this many times as much."""
FASTER = 1.5
_PAYS = (
    "For data made in it, a fresh pinned buffer of {even.bytes:bytes}, not a pageable one in 4 KiB pages, pays {after}"
)
_TAKES = (
    "Getting and freeing it takes {took:seconds}, {extra} a touched pageable one; each {even.direction} copy is "
    "{even.gain_seconds:seconds} faster than a pageable one."
)
_FASTER = "{usual} of {size:bytes} takes {slow}, {longer} as long as {best} ({fast})"
_BOTH = "Both times are those of getting and freeing the buffer, with one thread."
TEXTS: Mapping[str, Text] = {
    "not-fresh": Text(
        "a buffer that is called fresh took fewer page faults than it has pages",
        "{count} of {all} buffers were not fresh memory: {cell.page_faults:,} page faults for {needed:,} pages "
        "({way}, {cell.bytes:bytes})",
        "The largest of them is named. They are left out of all comparisons.",
        "Do not quote these rows. See the settings in /sys/kernel/mm/transparent_hugepage: pages larger than PinScope "
        "assumes take fewer faults.",
    ),
    "kept-by-driver": Text(
        "small cudaHostAlloc buffers took fewer page faults than they have pages, the largest did not",
        "{way} of {cell.bytes:bytes} takes {took}, probably because the driver reuses memory that it had already "
        "pinned",
        "Getting {cell.bytes:bytes} took {cell.page_faults:,} page faults. "
        "These buffers are not compared with fresh memory.",
        "Reuse small pinned buffers where a loop would get one each time: getting and freeing one costs {took} here.",
    ),
    "pinning-never-pays": Text(
        "the largest fresh pinned buffer costs more than a pageable one, and copies from it are not faster",
        "A fresh pinned buffer of {even.bytes:bytes} never pays for itself, {even.direction}",
        "Getting and freeing it takes {took:seconds}, {extra} fresh touched memory in 4 KiB pages, and copies "
        "from it are not faster.",
        "Keep such copies pageable, unless they must run beside other work.",
    ),
    "pays-late": Text(
        f"the largest fresh pinned buffer pays after more than {MANY_COPIES} copies",
        _PAYS,
        _TAKES,
        "Make pinned buffers once and keep them, or take them from a pool; for memory that is there already, compare "
        "with registering it (the table).",
    ),
    "pays-soon": Text(
        f"the largest fresh pinned buffer pays after 1 to {MANY_COPIES} copies",
        _PAYS,
        _TAKES,
        "Where a fresh buffer is made anyway and the data is made in it, make it pinned. While it is kept, the host "
        "cannot use its memory otherwise. For data that is there already see the experiment staging: there a new "
        "buffer may cost more than one plain copy.",
        "good",
    ),
    "pool-saves": Text(
        f"a fresh pinned buffer takes {POOL_SAVES:g} times as long as one from a pool",
        "Reusing a pinned buffer of {size:bytes} saves {saved} each time",
        "A fresh one takes {slow} to get and free; {best}: {fast}. The pool keeps the memory pinned meanwhile.",
        "Take pinned buffers from a pool (cupy.get_default_pinned_memory_pool, PyTorch's caching host allocator, or a "
        "list of your own), give each back once its last copy is done, and empty the pool when the host needs the "
        "memory.",
    ),
    "faster-way": Text(
        f"cudaHostAlloc takes {FASTER:g} times as long as another fresh way to pinned memory",
        _FASTER,
        _BOTH,
        "Touch a large buffer, then register it: pinscope.pinned_empty does, in huge pages and with several threads. "
        "The experiment pinning_strategy measures which way is the fastest here.",
    ),
    "faster-way/driver": Text(
        "the same, where the other way is memory of the driver's own calls",
        _FASTER,
        _BOTH,
        "It is driver memory, which none of the kernel's accounts contains, and needs the driver API (cuda.bindings). "
        "Compare it with pinscope.pinned_empty, which touches with several threads: see the experiment "
        "pinning_strategy.",
    ),
}
say = saying(TEXTS)


def _not_fresh(buffers: Buffers) -> Iterator[Costed]:
    """Memory that was there before says nothing of what fresh memory costs."""
    if not buffers.reused:
        return
    worst = max(buffers.reused, key=lambda cell: cell.bytes)
    needed = needed_faults(worst.way, worst.bytes, buffers.run.environment.page_bytes)
    yield say(
        "not-fresh",
        quantity("Page faults, the fewest of a row", worst.page_faults, "count"),
        quantity("Pages", needed, "count"),
        quantity("Combinations affected", len(buffers.reused), "count"),
        count=len(buffers.reused),
        all=len(buffers.cells),
        cell=worst,
        needed=needed,
        way=buffers.ways[worst.way].title,
    )


def _kept(buffers: Buffers) -> Iterator[Costed]:
    """Small buffers that the driver did not allocate anew."""
    if not buffers.kept:
        return
    most = max(buffers.kept, key=lambda cell: cell.bytes)
    yield say(
        "kept-by-driver",
        quantity("Page faults", most.page_faults, "count"),
        measured(f"Get and free, {format_bytes(most.bytes)}", most.both_seconds, "seconds"),
        quantity("Sizes affected", len(buffers.kept), "count"),
        way=buffers.ways[most.way].title,
        cell=most,
        took=pool_words(most.both_seconds),
    )


def _break_even(buffers: Buffers) -> Iterator[Costed]:
    """For the largest size: is a fresh pinned buffer worth making for a few copies?"""
    worst = buffers.dearest()
    if worst is None or worst.copies == 0 or worst.gain_seconds is None:
        return
    evens = [even for even in buffers.usual_evens() if even.is_known]
    pinned, pageable = (buffers.fresh[way, worst.bytes].both_seconds for way in ("pinned", BASE))
    dearer = exceeds(pinned, pageable)
    if worst.copies is None and not dearer:  # neither measurably dearer nor of any use: nothing to advise
        return
    rule = "pinning-never-pays" if worst.copies is None else "pays-soon"
    if worst.copies and worst.copies > MANY_COPIES:
        rule = "pays-late"
    yield say(
        rule,
        *(
            quantity(f"Pays after so many copies, {even.direction}", even.copies, "count", reason="copies gain nothing")
            for even in evens
        ),
        measured("Pinned buffer, get and free", pinned, "seconds"),
        measured("Pageable buffer, get, touch and free", pageable, "seconds"),
        *(quantity(f"Gain per copy, {even.direction}", even.gain_seconds, "seconds") for even in evens),
        cost=ratio(pinned, pageable),
        severity="by cost" if rule == "pays-late" else None,
        even=worst,
        extra=f"{format_seconds(worst.extra_seconds)} more than" if dearer else "about as long as",
        after=_after(evens),
        took=pinned.median,
    )


def _after(evens: Sequence[BreakEven]) -> str:
    """``from the first copy on (h2d and d2h)``, ``after 2 copies (h2d) and after 7 copies (d2h)``."""

    def since(copies: int | None) -> str:
        return "from the first copy on" if copies == 1 else f"after {format_count(copies or 0, 'copy')}"

    counts = {even.copies: [other.direction for other in evens if other.copies == even.copies] for even in evens}
    return joined([f"{since(count)} ({joined(ways)})" for count, ways in counts.items()])


def _pool(buffers: Buffers) -> Iterator[Costed]:
    if pair := buffers.cheaper(of_kind(WAYS, "pool"), POOL_SAVES):
        slow, fast = (cell.both_seconds for cell in pair)
        yield say(
            "pool-saves",
            measured("Fresh", slow, "seconds"),
            measured("Reused", fast, "seconds"),
            durations=(slow, fast),
            size=pair[0].bytes,
            saved=roughly(slow.median - fast.median, slow.uncertainty),
            slow=roughly(slow.median, slow.uncertainty),
            fast=pool_words(fast),
            best=buffers.ways[pair[1].way].title,
        )


def _cheaper(buffers: Buffers) -> Iterator[Costed]:
    """Is there a fresh way to pinned memory that is clearly faster than the usual one?"""
    if pair := buffers.cheaper(("write_combined", *of_kind(WAYS, "registered"), *of_kind(WAYS, "driver")), FASTER):
        slow, fast = (cell.both_seconds for cell in pair)
        usual, best = (buffers.ways[cell.way].title for cell in pair)
        yield say(
            "faster-way/driver" if WAYS[pair[1].way].driver else "faster-way",
            measured(usual, slow, "seconds"),
            measured(best, fast, "seconds"),
            durations=(slow, fast),
            severity="by cost" if buffers.run.lab == "cuda" else "note",
            usual=usual,
            best=best,
            size=pair[0].bytes,
            slow=roughly(slow.median, slow.uncertainty),
            fast=roughly(fast.median, fast.uncertainty),
        )


RULES = (_not_fresh, _kept, _break_even, _pool, _cheaper)
