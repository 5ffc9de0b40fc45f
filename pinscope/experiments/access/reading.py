"""What an access run concludes: time over uses and over the share that is used, and which way is faster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import Annotated, Literal, NamedTuple

from pinscope.analysis.cells import (
    AS_GOOD_WORDS,
    Label,
    LineStyle,
    Value,
    Way,
    cells,
    clearly_more,
    every_combination,
    first,
    key,
    near,
    tied,
    way,
)
from pinscope.analysis.read_rows import Row, grouped
from pinscope.analysis.statistics import Summary, are_known, compared, measured
from pinscope.analysis.texts import Wrong
from pinscope.records.run import VARIES, ExperimentRun, Quantity, Table, quantity, table
from pinscope.units import format_count, format_share

WayName = Literal["copy", "copy_part", "mapped", "managed", "prefetched"]
PatternName = Literal["stream_read", "stream_write", "random_read", "scatter_write"]
WAYS: Mapping[WayName, Way] = {
    "copy": way("explicit copy", "an explicit copy", LineStyle("copy"), help="all of it to the GPU first"),
    "copy_part": way(
        "2D copy of the part",
        "a 2D copy of the part",
        LineStyle("copy", "circle-open", "dash"),
        help="a 2D copy of the blocks that are used",
    ),
    "mapped": way(
        "zero-copy (mapped)",
        "zero-copy",
        LineStyle("mapped", "triangle-up"),
        help="the kernel reaches host memory in place (zero-copy)",
    ),
    "managed": way(
        "managed, on demand",
        "managed memory that migrates on demand",
        LineStyle("managed", "pentagon"),
        kinds="managed",
        help="pages migrate on demand",
    ),
    "prefetched": way(
        "managed, prefetched",
        "prefetched managed memory",
        LineStyle("managed", "pentagon-open", "dash"),
        kinds="managed",
        help="managed memory, brought beforehand",
    ),
}
PATTERNS: Mapping[PatternName, str] = {
    "stream_read": "streaming read",
    "stream_write": "streaming write",
    "random_read": "random read",
    "scatter_write": "scatter write",
}


By = Literal["uses", "spacing"]
Verdict = Literal["faster", "as good", "slower", "not known"]


@dataclass(frozen=True)
class Cell:
    """All repeats of one combination; ``spacing``: one block or word of so many is used."""

    pattern: Annotated[PatternName, Label("pattern", words=PATTERNS.__getitem__)]
    spacing: Annotated[int, Label("share used", "share", words=lambda spacing: 1 / spacing)]
    uses: Annotated[int, Label("uses", "count")]
    way: Annotated[WayName, Label("way", words=lambda name: WAYS[name].title)]
    wall_seconds: Annotated[Summary, Value("time", "seconds", "less")]
    device_seconds: Annotated[Summary, Value("of it on the GPU", "seconds", "less")]
    touched_bytes: Annotated[int, Value("used each time", "bytes", make=first)]
    wrong_count: Annotated[int, Value("wrong repeats", "count", "less", lambda intact: intact.count(False), "intact")]

    @property
    def useful_bytes_per_second(self) -> Annotated[float, Value("useful rate", "bytes/second", "more")]:
        """What the kernel used, over the time until the result was there."""
        return self.touched_bytes * self.uses / self.seconds

    @property
    def seconds(self) -> float:
        """The median until the result can be used."""
        return self.wall_seconds.median

    @property
    def bytes(self) -> int:
        """Length of the data."""
        return self.touched_bytes * self.spacing

    @property
    def words(self) -> str:
        """``2 random reads of 25.0 %``."""
        share = "" if self.spacing == 1 else f" of {format_share(1 / self.spacing)}"
        return f"{format_count(self.uses, PATTERNS[self.pattern])}{share}"


class Pair(NamedTuple):
    """A way, and another for the same use of the same data."""

    cell: Cell
    other: Cell

    @property
    def times(self) -> float:
        """The first's time over the second's."""
        return self.cell.seconds / self.other.seconds

    @property
    def times_words(self) -> str:
        """``1.09``, ``12.3``."""
        return f"{self.times:.{1 if self.times >= 10 else 2}f}"

    @property
    def against_words(self) -> str:
        """``2.50 times faster``, ``as fast``."""
        if self.verdict == "as good":
            return "as fast"
        return f"{self.times_words} times slower" if self.times > 1 else f"{1 / self.times:.2f} times faster"

    def figure(self, name: str, key: str | None = None) -> Quantity:
        """The ratio as findings and headlines show it."""
        return compared(name, self.cell.wall_seconds, self.other.wall_seconds, key=key)

    @property
    def verdict(self) -> Verdict:
        """How the first does; as good also where the difference is less than both may be off; not known where they vary
        too much to tell."""
        own, other = self.cell.wall_seconds, self.other.wall_seconds
        if not are_known(own, other):
            return "not known"
        return "slower" if clearly_more(own, other) else "faster" if clearly_more(other, own) else "as good"


def winners(alike: Sequence[Cell]) -> list[Cell]:
    """Of cells that differ in the way only: the fastest, and those that are as good as that; fastest first."""
    return tied(sorted(alike, key=lambda cell: cell.seconds), lambda cell: cell.wall_seconds)


SCATTERED: Sequence[PatternName] = ("random_read", "scatter_write")


@dataclass(frozen=True)
class Accesses:
    """The cells of a run."""

    cells: Sequence[Cell]

    @property
    def wrong(self) -> Wrong:
        """Results that were not right."""
        cases = [(f"{WAYS[cell.way].title}, {cell.words}", cell.wrong_count) for cell in self.cells]
        return Wrong("access-wrong", "Data was read or written wrong", "repeats", cases)

    @cached_property
    def patterns(self) -> list[PatternName]:
        """In the order measured."""
        return list(dict.fromkeys(cell.pattern for cell in self.cells))

    @cached_property
    def alike(self) -> dict[tuple[PatternName, int, int], list[Cell]]:
        """Pattern, spacing and uses → cells that differ in the way only."""
        return grouped(self.cells, lambda cell: (cell.pattern, cell.spacing, cell.uses))

    @cached_property
    def pairs(self) -> list[Pair]:
        """Zero-copy beside the copy that a program would make in its place: of the part alone where a call takes it."""
        alike = [{cell.way: cell for cell in group} for group in self.alike.values()]
        both = [ways for ways in alike if {"mapped", "copy"} <= ways.keys()]
        return [Pair(ways["mapped"], ways.get("copy_part", ways["copy"])) for ways in both]

    def once(self, pattern: PatternName) -> dict[WayName, Cell]:
        """Way → its cell of data that is used whole and once."""
        return {cell.way: cell for cell in self.alike.get((pattern, 1, 1), ())}

    def beside_copy(self, way: WayName, pattern: PatternName) -> Pair | None:
        """A way beside an explicit copy of data that is used whole and once; ``None`` where that is not known."""
        ways = self.once(pattern)
        pairs = [Pair(ways[way], ways["copy"])] if {way, "copy"} <= ways.keys() else []
        return next(iter(known_pairs(pairs)), None)

    def least(self, by: By) -> int:
        """The least number of uses or spacing."""
        return min(int(getattr(cell, by)) for cell in self.cells)

    def over(self, by: By, pattern: PatternName) -> dict[WayName, list[Cell]]:
        """Way → its cells over the number of uses, or over the spacing, ascending; the other is the least."""
        other: By = "spacing" if by == "uses" else "uses"
        course = [cell for cell in self.cells if cell.pattern == pattern and getattr(cell, other) == self.least(other)]
        return grouped(sorted(course, key=lambda cell: int(getattr(cell, by))), lambda cell: cell.way)

    def courses(self, by: By) -> list[list[Pair]]:
        """Zero-copy beside the copy in its place, over uses or over the share: of each pattern in which it was measured
        at several points."""
        by_cell = {pair.cell: pair for pair in self.pairs}
        mapped = [self.over(by, pattern).get("mapped", ()) for pattern in self.patterns]
        courses = [[by_cell[cell] for cell in cells if cell in by_cell] for cells in mapped if len(cells) > 1]
        return list(filter(None, courses))


def of(run: ExperimentRun, rows: Sequence[Row]) -> Accesses | None:
    """All that a run measured; ``None``: nothing yet."""
    del run
    measured = cells(Cell, rows)
    return Accesses(measured) if measured else None


def tables(accesses: Accesses) -> Iterator[Table]:
    """Which way is faster, and all cells."""
    yield _winners(accesses)
    yield every_combination(accesses.cells, "Medians. Useful rate: bytes that kernels used, over the time.")


def verdict(accesses: Accesses) -> str | None:
    """Whether to copy the data or to let kernels reach it; ``None`` where nothing can be compared."""
    known = known_pairs(accesses.pairs)
    if not known:
        return None
    whole = [pair for pair in known if pair.cell.spacing == 1]
    least, most = (choose(whole or known, key=lambda pair: pair.times) for choose in (min, max))
    if not whole or (least.verdict, most.verdict) == ("faster", "slower"):
        ends = [f"{pair.against_words} ({pair.cell.words})" for pair in dict.fromkeys((least, most))]
        return f"Zero-copy is {', '.join(ends)}."
    if most.verdict != "slower":
        longest = f"it takes at most {most.times_words} times a copy's time"
        unclear = "Measure again: times vary too much to tell whether zero-copy is slower than a copy."
        is_near = near(most.cell.wall_seconds, most.other.wall_seconds)
        return f"Map the data (zero-copy): {longest}, and no GPU memory." if is_near else unclear
    parts = [pair for pair in accesses.pairs if pair.cell.spacing > 1]
    faster, uses = faster_shares(parts), max((pair.cell.uses for pair in parts), default=1)
    mapped = f", map if {faster} is used {'once' if uses == 1 else f'{uses} times'}" if faster else ""
    again = " and again" if any(pair.cell.uses == 1 and pair.verdict != "slower" for pair in whole) else ""
    scattered = [pair for pair in whole if pair.cell.uses == 1 and pair.cell.pattern in SCATTERED]
    if again and scattered and all(pair.verdict == "slower" for pair in scattered):
        return f"Copy data read whole randomly or again (mapped up to {most.times_words} times slower){mapped}."
    return f"Copy what kernels read whole{again} (mapped up to {most.times_words} times slower){mapped}."


def known_pairs(pairs: Iterable[Pair]) -> list[Pair]:
    """Those of which it is known which way is faster."""
    return [pair for pair in pairs if pair.verdict != "not known"]


def faster_shares(parts: Sequence[Pair]) -> str:
    """The largest share from which down zero-copy is known to be faster whatever the pattern."""
    by_spacing = sorted(grouped(parts, lambda pair: pair.cell.spacing).items(), reverse=True)
    faster = takewhile(lambda group: all(pair.verdict == "faster" for pair in group[1]), by_spacing)
    won = [format_share(1 / spacing) for spacing, _ in faster]
    return won[-1] if won else ""


def headline(accesses: Accesses) -> Iterator[Quantity]:
    """Ways beside a copy, then the best way of the first pattern and its rate, of data that is used whole and once."""
    beside_a_copy: Sequence[tuple[WayName, PatternName]] = (
        ("mapped", "random_read"),
        ("managed", "stream_read"),
        ("mapped", "stream_read"),
    )
    for beside, pattern in beside_a_copy:
        ways = accesses.once(pattern)
        if {beside, "copy"} <= ways.keys():
            name = f"Time of {WAYS[beside].title} against an explicit copy, one {PATTERNS[pattern]}"
            yield Pair(ways[beside], ways["copy"]).figure(name, key(ways[beside], "ratio"))
    alike = list(accesses.once(accesses.patterns[0]).values())
    if alike:
        best, name = winners(alike)[0], PATTERNS[alike[0].pattern]
        yield quantity(f"Fastest for one {name}", _best(alike), "text", reason=VARIES, key="fastest.way")
        words = f"Useful rate of the fastest, one {name}"
        rate = best.useful_bytes_per_second
        yield measured(words, best.wall_seconds, "bytes/second", rate, key="fastest.rate")


def _best(alike: Sequence[Cell]) -> str | None:
    best = winners(alike)
    return " or ".join(WAYS[cell.way].title for cell in best) if best[0].wall_seconds.is_known else None


def _winners(accesses: Accesses) -> Table:
    rows = []
    for (pattern, spacing, uses), alike in accesses.alike.items():
        known = [cell for cell in alike if cell.wall_seconds.is_known]
        best, slowest = winners(alike)[0], max(known, key=lambda cell: cell.seconds, default=None)
        times = Pair(slowest, best).times if slowest and best in known else None
        takes = (times and best.seconds, WAYS[slowest.way].title if slowest else None, times)
        rows.append((PATTERNS[pattern], 1 / spacing, uses, _best(alike), *takes))
    columns = {"pattern": "text", "share used": "share", "uses": "count", "best way": "text", "it takes": "seconds"}
    return table(
        "Which way wins",
        columns | {"slowest way": "text", "it takes × the best": "ratio"},
        rows,
        note=f"{AS_GOOD_WORDS} n/a: the fastest varies too much to tell; the slowest is of those that do not. Times "
        "run from data on the host until the result can be used.",
    )
