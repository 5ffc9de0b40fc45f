"""Which way to use host data. The texts stand first; the functions below give them their numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from pinscope.analysis.read_rows import grouped
from pinscope.analysis.statistics import measured
from pinscope.analysis.texts import Costed, Text, joined, saying, times
from pinscope.experiments.access.reading import PATTERNS, WAYS, Accesses, Pair, faster_shares, known_pairs
from pinscope.units import format_count, format_share

SLOW_MANAGED = 2.0
"""On-demand migration that takes this many times a copy is worth a finding."""
_WINNERS = "The first table names the best way of each case, and those as good."
TEXTS = {
    "access-uses": Text(
        "zero-copy was measured beside an explicit copy for several numbers of uses",
        "Data that kernels use whole: zero-copy takes up to {longer} as long as an explicit copy ({used})",
        "The data has {worst.cell.bytes:bytes}. " + _WINNERS,
        "Copy data to the GPU where zero-copy is slower; where it is as good, either will do.",
    ),
    "access-sparse": Text(
        "zero-copy was measured beside a copy at several shares of the data",
        "Data used in part, for {uses}: zero-copy is faster than a copy {where}",
        "The copy is of the part alone where a 2D copy takes it. " + _WINNERS,
        "Map the buffer where zero-copy is faster; where it is slower, copy the part alone, if kernels use whole "
        "blocks (cudaMemcpy2DAsync), else all of the data.",
    ),
    "managed-on-demand": Text(
        f"one streaming read of managed memory takes {SLOW_MANAGED} times as long as by an explicit copy, or more",
        "Managed memory that migrates on demand takes {longer} as long as an explicit copy for one streaming read of "
        "{managed.bytes:bytes}",
        "{managed.seconds:seconds} against {copy.seconds:seconds}[; over all patterns {least:times} to {cost:times} as "
        "long].[ Prefetched, that read takes {prefetched.times_words} times as long as a copy.]",
        "Call cudaMemPrefetchAsync before kernels read managed memory, never more than the GPU has free, or copy from "
        "pinned memory.[ Use an explicit copy rather than managed memory for data that kernels write whole: "
        "prefetched, it took {written.times:times} as long.]",
    ),
}
say = saying(TEXTS)


def _used(pair: Pair) -> str:
    return f"{PATTERNS[pair.cell.pattern]}, {format_count(pair.cell.uses, 'use')}"


def _whole(accesses: Accesses) -> Iterator[Costed]:
    """Zero-copy beside a copy of data that is used whole, over the number of uses."""
    courses = accesses.courses("uses")
    if not courses or accesses.least("spacing") > 1:
        return
    known = known_pairs(chain(*courses))
    if not known:
        return
    worst = max(known, key=lambda pair: pair.times)
    ends = [worst, *(pair for course in courses for pair in (course[0], course[-1]))]
    evidence = [pair.figure(f"Time of zero-copy against an explicit copy, {_used(pair)}") for pair in ends]
    yield say(
        "access-uses",
        *evidence,
        cost=worst.times,
        worst=worst,
        longer=times(worst.times, *(cell.wall_seconds for cell in worst)),
        used=_used(worst),
    )


def _parts(accesses: Accesses) -> Iterator[Costed]:
    """Zero-copy beside a copy of what is used, over the share of the data, for the fewest uses."""
    courses = accesses.courses("spacing")
    if not courses:
        return
    pairs = list(chain(*courses))
    known = [known for course in courses if (known := known_pairs(course))]
    faster, always = [pair for pair in pairs if pair.verdict == "faster"], faster_shares(pairs)
    widest = min((pair.cell.spacing for pair in faster), default=None)
    won = [pair for pair in faster if pair.cell.spacing == widest]
    lasts = [cell for pair in (*won, *(course[-1] for course in known)) for cell in pair]
    names = [f"{PATTERNS[cell.pattern].capitalize()} of {format_share(1 / cell.spacing)}" for cell in lasts]
    yield say(
        "access-sparse",
        *(
            measured(f"{name}, {WAYS[cell.way].title}", cell.wall_seconds, "seconds")
            for name, cell in zip(names, lasts, strict=True)
        ),
        cost=max((1 / pair.times for pair in known_pairs(pairs)), default=1.0),
        where=_where(faster, always),
        uses=format_count(accesses.least("uses"), "use"),
    )


def _where(faster: Sequence[Pair], always: str) -> str:
    """``at 1.6 % (all patterns), in some up to 25.0 %``, ``at 6.2 % (random read and scatter write)``."""
    if not faster:
        return "at no share that was measured"
    widest = format_share(1 / min(pair.cell.spacing for pair in faster))
    alike = grouped(faster, lambda pair: format_share(1 / pair.cell.spacing))[widest]
    patterns = dict.fromkeys(PATTERNS[pair.cell.pattern] for pair in faster)
    if always != widest and len(alike) < len(patterns):
        return f"at {always} (all patterns), in some up to {widest}" if always else f"in some patterns up to {widest}"
    return f"at {widest} ({joined(list(patterns))})"


def _on_demand(accesses: Accesses) -> Iterator[Costed]:
    """How much on-demand migration costs beyond a copy, and whether prefetching mends it."""
    pair = accesses.beside_copy("managed", "stream_read")
    if pair is None or pair.times < SLOW_MANAGED:
        return
    managed, copy = pair
    by_pattern = [accesses.beside_copy("managed", pattern) for pattern in accesses.patterns]
    longer = [pair.times for pair in by_pattern if pair]
    prefetched = accesses.beside_copy("prefetched", "stream_read")
    written = accesses.beside_copy("prefetched", "stream_write")
    written = written if written and written.verdict == "slower" else None
    read_ways = (managed, copy, *(prefetched or ())[:1])
    titles = [f"One streaming read, {WAYS[cell.way].title}" for cell in read_ways]
    evidence = [measured(title, cell.wall_seconds, "seconds") for title, cell in zip(titles, read_ways, strict=True)]
    yield say(
        "managed-on-demand",
        *evidence,
        *([written.figure("One streaming write, managed, prefetched, against an explicit copy")] if written else []),
        cost=max(longer),
        longer=times(pair.times, managed.wall_seconds, copy.wall_seconds),
        managed=managed,
        copy=copy,
        least=min(longer) if len(longer) > 1 else None,
        prefetched=prefetched,
        written=written,
    )


RULES = (_whole, _parts, _on_demand)
