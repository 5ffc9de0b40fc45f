"""Which way to use host data. The texts stand first; the functions below give them their numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from pinscope.analysis.read_rows import grouped
from pinscope.analysis.statistics import measured
from pinscope.analysis.texts import Costed, Text, dearest_first, joined, say, times
from pinscope.experiments.access.reading import Accesses, By, Course, Pair, Verdict
from pinscope.experiments.access.ways import PATTERNS, WAYS
from pinscope.records.finding import Finding, quantity, wrong_data
from pinscope.units import format_share

SLOW_MANAGED = 2.0
"""On-demand migration that takes this many times a copy is worth a finding."""
_EQUAL = "Ways within 10 % of each other count as equally good."
_PART = (
    "Beside a copy (of the part alone where a 2D copy takes it), for {uses}, zero-copy is {course}. " + _EQUAL,
    "{advice}",
)
TEXTS = {
    "access-uses": Text(
        "zero-copy was measured beside an explicit copy for several numbers of uses",
        "Data that kernels use whole: zero-copy takes up to {worst.times_words} times as long as an explicit copy "
        "({used})",
        "Beside an explicit copy of {worst.cell.bytes:bytes}, zero-copy is {course}. " + _EQUAL,
        "{advice}",
    ),
    "access-sparse": Text(
        "zero-copy was measured beside a copy at several shares of the data, and is faster at one",
        "Data that kernels use in part and once: zero-copy is faster than a copy at {share:share} ({patterns:and})",
        *_PART,
    ),
    "access-sparse/never": Text(
        "the same, and zero-copy is faster at none",
        "Data that kernels use in part and once: zero-copy is faster than a copy at no share that was measured",
        *_PART,
    ),
    "managed-on-demand": Text(
        f"one streaming read of managed memory takes {SLOW_MANAGED} times as long as by an explicit copy, or more",
        "Managed memory that migrates on demand takes {longer} as long as an explicit copy for one streaming read of "
        "{managed.bytes:bytes}",
        "{managed.seconds:seconds} against {copy.seconds:seconds}[; over all patterns {least:times} to {cost:times} as "
        "long].[ Prefetched, that read is {prefetched}.]",
        "Call cudaMemPrefetchAsync before kernels read managed memory, never more than the GPU has free, or copy from "
        "pinned memory.[ Use an explicit copy for data that kernels write whole: prefetched managed memory took "
        "{written:times} as long.]",
    ),
}


def findings(accesses: Accesses) -> tuple[Finding, ...]:
    """All findings of a run."""
    rules = (_wrong, _whole, _parts, _on_demand)
    return dearest_first(finding for rule in rules for finding in rule(accesses))


def _wrong(accesses: Accesses) -> Iterator[Costed]:
    if wrong := [cell for cell in accesses.cells if cell.wrong_count]:
        repeats = quantity("Wrong repeats", sum(cell.wrong_count for cell in wrong), "count")
        detail = f"The first case: {WAYS[wrong[0].way].title}, {PATTERNS[wrong[0].pattern]}."
        title = "Data was read or written wrong"
        yield 1.0, wrong_data("access-wrong", repeats, title=title, detail=detail)


def _uses(count: int) -> str:
    return f"{count} use{'' if count == 1 else 's'}"


def _used(pair: Pair) -> str:
    return f"{PATTERNS[pair.cell.pattern]}, {_uses(pair.cell.uses)}"


def _whole(accesses: Accesses) -> Iterator[Costed]:
    """Zero-copy beside a copy of data that is used whole, over the number of uses."""
    courses = accesses.courses("uses")
    if not courses or accesses.least("spacing") > 1:
        return
    worst = max((pair for course in courses for pair in course.pairs), key=lambda pair: pair.times)
    ends = [pair for course in courses for pair in dict.fromkeys((course.pairs[0], course.pairs[-1]))]
    evidence = [quantity(f"Time of zero-copy ÷ explicit copy, {_used(pair)}", pair.times, "ratio") for pair in ends]
    course, advice = _by_course(courses), _together(courses, _for_uses, "For {} of the whole data, {}", " ")
    yield say(
        TEXTS, "access-uses", *evidence, cost=worst.times, worst=worst, used=_used(worst), course=course, advice=advice
    )


def _parts(accesses: Accesses) -> Iterator[Costed]:
    """Zero-copy beside a copy of what is used, over the share of the data, for the fewest uses."""
    courses = accesses.courses("spacing")
    if not courses:
        return
    faster = [pair for course in courses for pair in course.pairs if pair.verdict == "faster"]
    widest = min((pair.cell.spacing for pair in faster), default=None)
    lasts = [cell for course in courses for cell in course.pairs[-1]]
    in_part = any(cell.way == "copy_part" for cell in lasts)
    copy = "copy the part alone where kernels use whole blocks (cudaMemcpy2DAsync), else all" if in_part else "copy all"
    copied = [PATTERNS[course.pattern] for course in courses if any(how == "slower" for how, _ in course.stretches)]
    larger = f" At larger measured shares of {joined(copied)}, {copy} of the data." if copied else ""
    where = _together([course for course in courses if _won(course)], _won, "{1} for {0}", "; ")
    names = [f"{PATTERNS[cell.pattern].capitalize()} of {format_share(1 / cell.spacing)}" for cell in lasts]
    yield say(
        TEXTS,
        "access-sparse" if faster else "access-sparse/never",
        *(
            measured(f"{name}, {WAYS[cell.way].title}", cell.wall_seconds, "seconds")
            for name, cell in zip(names, lasts, strict=True)
        ),
        cost=max(1 / pair.times for course in courses for pair in course.pairs),
        share=widest and 1 / widest,
        patterns=[PATTERNS[pair.cell.pattern] for pair in faster if pair.cell.spacing == widest],
        uses=_uses(accesses.least("uses")),
        course=_by_course(courses),
        advice=f"Map the buffer where kernels use little of it, once: {where}.{larger}"
        if where
        else f"{copy[0].upper()}{copy[1:]} of the data.",
    )


def _together(courses: Sequence[Course], words: Callable[[Course], str], form: str, between: str) -> str:
    """Words about each course, those of patterns that do alike said once."""
    alike = grouped(courses, words).items()
    names = {said: joined([PATTERNS[course.pattern] for course in group]) for said, group in alike}
    return between.join(form.format(patterns, said) for said, patterns in names.items())


def _by_course(courses: Sequence[Course]) -> str:
    """``as good for 1 use, slower for 2 to 8 uses (streaming read and streaming write); slower …``."""

    def words(course: Course) -> str:
        return ", ".join(f"{how} {_points(course.by, points)}" for how, points in course.stretches)

    return _together(courses, words, "{1} ({0})", "; ")


def _points(by: By, points: Sequence[int]) -> str:
    least, most = points[0], points[-1]
    if by == "spacing":
        share = format_share(1 / least)
        return f"at {share}" if least == most else f"from {share} to {format_share(1 / most)}"
    return f"for {_uses(least)}" if least == most else f"for {least} to {_uses(most)}"


def _for_uses(course: Course) -> str:
    """What to do with data that is used whole."""
    how, points = course.stretches[-1]
    before = [(verdict, used) for verdict, used in course.stretches[:-1]]
    if how != "slower":
        where = f" for {_uses(points[-1])}" if any(verdict == "slower" for verdict, _ in before) else ""
        return f"let kernels reach the data on the host{where}: it needs no buffer on the GPU."
    if not before:
        return "copy the data."
    fewest = before[0][1]
    again = f"again (measured {_points(course.by, points)})" if fewest == [1] else f"{points[0]} times or more"
    if len(before) > 1:
        return f"copy data that kernels use {again}."
    once = "once" if fewest == [1] else f"{fewest[0]} to {fewest[-1]} times"
    return (
        f"copy data that kernels use {again}; used {once}, zero-copy needs no buffer on the GPU and is "
        f"{'faster' if before[0][0] == 'faster' else 'about as fast'}."
    )


def _won(course: Course) -> str:
    """The shares, down to the least, at which zero-copy is faster."""
    how, points = course.stretches[-1]
    return _points(course.by, points) if how == "faster" else ""


def _on_demand(accesses: Accesses) -> Iterator[Costed]:
    """How much on-demand migration costs beyond a copy, and whether prefetching mends it."""
    by_pattern = [accesses.once(pattern) for pattern in accesses.patterns]
    read, write = accesses.once("stream_read"), accesses.once("stream_write")
    if not {"managed", "copy"} <= read.keys() or Pair(read["managed"], read["copy"]).times < SLOW_MANAGED:
        return
    managed, copy = pair = Pair(read["managed"], read["copy"])
    longer = [Pair(ways["managed"], ways["copy"]).times for ways in by_pattern if {"managed", "copy"} <= ways.keys()]
    prefetched = Pair(read["prefetched"], copy) if "prefetched" in read else None
    written = Pair(write["prefetched"], write["copy"]) if {"prefetched", "copy"} <= write.keys() else None
    read_ways = (managed, copy, *(prefetched or ())[:1])
    titles = [f"One streaming read, {WAYS[cell.way].title}" for cell in read_ways]
    evidence = [measured(title, cell.wall_seconds, "seconds") for title, cell in zip(titles, read_ways, strict=True)]
    yield say(
        TEXTS,
        "managed-on-demand",
        *evidence,
        cost=max(longer),
        longer=times(pair.times, managed.wall_seconds, copy.wall_seconds),
        managed=managed,
        copy=copy,
        least=min(longer) if len(longer) > 1 else None,
        prefetched=prefetched and _beside(prefetched.verdict, prefetched.times_words),
        written=written.times if written and written.verdict == "slower" else None,
    )


def _beside(verdict: Verdict, times_words: str) -> str:
    """``as good as a copy (1.09 times as long)``."""
    return f"{verdict} {'as' if verdict == 'as good' else 'than'} a copy ({times_words} times as long)"
