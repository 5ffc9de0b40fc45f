"""What a staging run concludes: times, what holds the CPU, and which way is fastest for what."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Annotated

from pinscope.analysis.cells import (
    AS_GOOD_WORDS,
    Label,
    Value,
    best_of,
    cells,
    clearly_more,
    count,
    every_combination,
    listed,
    mean,
    median,
    of_kind,
)
from pinscope.analysis.columns import Columns
from pinscope.analysis.read_rows import Rows, grouped
from pinscope.analysis.statistics import Summary, compared, measured, ratio
from pinscope.analysis.texts import FORMS, Wrong, about_times
from pinscope.experiments.staging.ways import WAYS
from pinscope.records.run import VARIES, ExperimentRun, Quantity, Table, quantity
from pinscope.units import format_bytes, format_seconds

USUAL_BYTES = 2**28
"""Sentences are about the size nearest to this."""
BACK, RINGS = ("back_fresh", "back_plain", "back_pinned"), ("ring_two", "ring_four")
"""From the GPU in one copy, and through a ring."""
ALONE = {"ring_copies": "ring_copies_alone", "ring_drain": "ring_drain_alone"}
"""Half of a ring, measured beside the other → alone."""


@dataclass(frozen=True)
class Cell:
    """All repeats of one combination. Processor time is a mean: short ones are counted in clock ticks."""

    bytes: Annotated[int, Label("size", "bytes")]
    uses: Annotated[int, Label("uses", "count")]
    way: Annotated[str, Label("way", words=lambda way: WAYS[way].title)]
    threads: Annotated[int, Label("threads", "count")]
    wall_seconds: Annotated[Summary, Value("time", "seconds", "less")]
    prepare_seconds: Annotated[float, Value("before the first copy", "seconds", "less", median)]
    finish_seconds: Annotated[float, Value("after the last", "seconds", "less", median)]
    cpu_seconds: Annotated[float, Value("processor time", "seconds", "less", mean)]
    thread_cpu_seconds: Annotated[float, Value("of it, the caller", "seconds", "less", mean)]
    wrong_words: Annotated[int | None, Value("wrong repeats", "count", "less", count)]

    @property
    def bytes_per_second(self) -> Annotated[float, Value("rate", "bytes/second", "more")]:
        """What was brought, over the time from ready to there."""
        return self.bytes * self.uses / self.seconds

    @property
    def copy_cpu_seconds(self) -> Annotated[float, Value("processor time of a copy", "seconds", "less")]:
        """Of all threads of the process, for one use."""
        return self.cpu_seconds / self.uses

    @property
    def seconds(self) -> float:
        """The median of all uses together."""
        return self.wall_seconds.median

    @property
    def copy_seconds(self) -> float:
        """Of that, the copies of all uses."""
        return self.seconds - self.prepare_seconds - self.finish_seconds

    @property
    def title(self) -> str:
        """The way for people, with the number of threads where the program chooses it."""
        return WAYS[self.way].title + self._threads(", {}")

    @property
    def phrase(self) -> str:
        """The way inside a sentence."""
        return WAYS[self.way].words + self._threads(" ({})")

    def _threads(self, form: str) -> str:
        return form.format(FORMS["threads"](self.threads)) if "threads" in WAYS[self.way].kinds else ""

    def is_slower_than(self, other: Cell) -> bool:
        """Whether it clearly takes longer, and both times are figures."""
        times = self.beside(other)
        return all(time.is_known for time in times) and clearly_more(*times)

    def beside(self, other: Cell) -> tuple[Summary, Summary]:
        """Both times."""
        return self.wall_seconds, other.wall_seconds

    def paid_after(self, plain: Cell) -> int | None:
        """From how many uses of the same data it takes less time than plain copies; ``None``: never.

        Both measured for one use: a way takes its parts before and after the copies once, and the copies each time.
        """
        gain = (plain.copy_seconds - self.copy_seconds) / self.uses
        once = self.prepare_seconds + self.finish_seconds - plain.prepare_seconds - plain.finish_seconds
        return max(math.floor(once / gain) + 1, 1) if gain > 0 else None


@dataclass(frozen=True)
class Ring:
    """A ring of pinned buffers that is drained, beside its halves of the same size with as many threads.

    Attributes:
        beside: each half, while the other went on beside it.
        alone: half → with nothing beside it.
    """

    cell: Cell
    beside: Sequence[Cell]
    alone: Mapping[str, Cell]

    @property
    def known_slower(self) -> Cell | None:
        """The half that sets the pace; ``None`` where a half varies too much to tell."""
        known = all(cell.wall_seconds.is_known for cell in self.beside)
        return max(self.beside, key=lambda cell: cell.seconds) if known else None

    @property
    def slowed(self) -> Sequence[tuple[Cell, Cell]]:
        """Halves that take longer beside the other, each with itself alone."""
        pairs = [(cell, self.alone[cell.way]) for cell in self.beside if cell.way in self.alone]
        return [(cell, alone) for cell, alone in pairs if cell.is_slower_than(alone)]


@dataclass(frozen=True)
class Staging:
    """The cells of a run, and how long a thread's buffer was at most."""

    cells: Sequence[Cell]
    chunk_bytes: int = 2**23

    @cached_property
    def sizes(self) -> list[int]:
        """Those measured, ascending."""
        return sorted({cell.bytes for cell in self.cells})

    @cached_property
    def size(self) -> int:
        """The usual one."""
        return min(self.sizes, key=lambda size: abs(math.log(size / USUAL_BYTES)))

    def at(self, size: int | None = None, **labels: int) -> dict[str, Cell]:
        """Way → its preferred cell, at the usual or another size, where the other labels are those given."""
        wanted = {"bytes": size or self.size, **labels}.items()
        matching = [cell for cell in self.cells if all(getattr(cell, name) == value for name, value in wanted)]
        return {name: _best(group)[0] for name, group in grouped(matching, lambda cell: cell.way).items()}

    def winners(self, size: int | None = None, **labels: int) -> list[Cell]:
        """Of the ways that a program may choose between: the fastest and all as good, as :func:`_best` orders them."""
        ways = self.at(size, **labels)
        return _best([ways[name] for name in of_kind(WAYS, "choice") if name in ways])

    @property
    def wrong(self) -> Wrong:
        """Repeats in which words did not arrive."""
        cases = [(f"{cell.title}, {format_bytes(cell.bytes)}", cell.wrong_words) for cell in self.cells]
        return Wrong("staging-wrong", "Data arrived wrong", "repeats", cases)

    @cached_property
    def ways(self) -> Mapping[str, Cell]:
        """Of the usual size, used once."""
        return self.at(uses=1)

    @cached_property
    def ring(self) -> Ring | None:
        """Of the usual size the preferred one; ``None`` where none was measured with both halves."""
        rings = [self.ways[name] for name in RINGS if name in self.ways]
        if not rings:
            return None
        cell = _best([ring for ring in rings if ring.wall_seconds.is_known] or rings)[0]
        ways = self.at(uses=1, threads=cell.threads)
        beside = [ways[name] for name in ALONE if name in ways]
        alone = {name: ways[other] for name, other in ALONE.items() if other in ways}
        return Ring(cell, beside, alone) if len(beside) == len(ALONE) else None

    def uses(self, size: int | None = None) -> list[int]:
        """Numbers that were measured, of one size or of all; ascending."""
        return sorted({cell.uses for cell in self.cells if size in (None, cell.bytes)})


def _best(alike: Sequence[Cell]) -> list[Cell]:
    """The fastest and all as good, that with least processor time first."""
    return best_of(alike, lambda cell: cell.wall_seconds, lambda cell: cell.cpu_seconds)


def of(run: ExperimentRun, rows: Rows) -> Staging | None:
    """All that a run measured; ``None``: nothing yet."""
    named = Columns.of(rows).labelled("memory", ("way",), lambda way: "pinned" if way == "in_place" else "pageable")
    chunk, measured = int(run.params.get("chunk", Staging.chunk_bytes)), cells(Cell, named)
    return Staging(measured, chunk) if measured else None


def verdict(staging: Staging) -> str | None:
    """The fastest way for one copy, beside a plain one; ``None``: too little."""
    size, plain, winners = format_bytes(staging.size), staging.ways.get("plain"), staging.winners(uses=1)
    if not winners or plain is None:
        return _back(staging)
    pair = plain.beside(winners[0])
    if not plain.is_slower_than(winners[0]):
        takes = f" ({format_seconds(plain.seconds)})" if plain.wall_seconds.is_known else ""
        return f"Copy {size} once by a plain copy{takes}: no way is clearly faster."
    how = f"for example by {winners[0].phrase}" if len(winners) > 1 else f"by {winners[0].phrase}"
    return f"Copy {size} {how}: {about_times(ratio(*pair), *pair)} a plain copy's rate."


def _back(staging: Staging) -> str | None:
    """Where nothing was brought to the GPU: what fresh memory takes beside memory that was written before."""
    fresh, kept = map(staging.ways.get, ("back_fresh", "back_plain"))
    if fresh is None or kept is None or not fresh.is_slower_than(kept):
        return None
    pair = fresh.beside(kept)
    size, pinned = format_bytes(staging.size), staging.ways.get("back_pinned")
    best = ", best pinned" if pinned and kept.is_slower_than(pinned) else ""
    times = about_times(ratio(*pair), *pair)
    return f"Keep the destination{best}: {size} from the GPU takes {times} as long into fresh memory."


def headline(staging: Staging) -> Iterator[Quantity]:
    """Of the usual size, used once: pinning to copy, and the fastest way; then what holds the CPU."""
    ways, best, size = staging.ways, staging.winners(uses=1), format_bytes(staging.size)
    plain, pin = ways.get("plain"), ways.get("pin_then_copy")
    if plain and pin:
        name = f"Time of {pin.title} against a {plain.title}, {size} once"
        yield compared(name, pin.wall_seconds, plain.wall_seconds, key="pin_then_copy.ratio")
    if plain and best:
        name = f"Time by the fastest way ÷ time of a {plain.title}, {size} once"
        yield compared(name, best[0].wall_seconds, plain.wall_seconds, key="fastest.ratio")
    if plain and "in_place" in ways and plain.cpu_seconds:
        for what, cell in (("pinned", ways["in_place"]), ("plain", plain)):
            name = f"Processor time of a {what} copy, {size}"
            yield quantity(name, cell.copy_cpu_seconds, "seconds", key=f"{what}.processor")
    if not best:
        rates = {f"{name}.rate": ways[name] for name in BACK if name in ways}
        rates |= {"ring.rate": staging.ring.cell} if staging.ring else {}
        for key, cell in rates.items():
            name = f"{cell.title[:1].upper()}{cell.title[1:]}, {size}"
            yield measured(name, cell.wall_seconds, "bytes/second", cell.bytes_per_second, key=key)
    if best:
        yield quantity(f"Fastest way, {size} once", _titles(best), "text", key="fastest.way")
        name, rate = f"Its rate, {size} once", best[0].bytes_per_second
        yield measured(name, best[0].wall_seconds, "bytes/second", rate, key="fastest.rate")


def tables(staging: Staging) -> Iterator[Table]:
    """Those that have rows."""
    cases = product(staging.sizes, staging.uses())
    ways = [(staging.winners(size, uses=uses), staging.at(size, uses=uses)) for size, uses in cases]
    yield listed(
        "Which way is fastest",
        [(best[0], _titles(best), at.get("plain"), at.get("in_place")) for best, at in ways if best],
        {
            "size": ("bytes", lambda row: row[0].bytes),
            "uses": ("count", lambda row: row[0].uses),
            "fastest from pageable memory": ("text", lambda row: row[1]),
            "it takes": ("seconds", lambda row: _known(row[0])),
            "rate": ("bytes/second", lambda row: _known(row[0], row[0].bytes_per_second)),
            "plain copies take × that": ("ratio", lambda row: row[2] and compared("", *row[2].beside(row[0])).value),
            "made in pinned memory": ("seconds", lambda row: row[3] and _known(row[3])),
        },
        f"{AS_GOOD_WORDS} They are named with it, that with least processor time first. n/a: {VARIES}.",
    )
    yield every_combination(
        staging.cells, note="Medians; processor time is a mean, of all threads of the process and all uses."
    )


def _known(cell: Cell, value: float | None = None) -> float | None:
    """Its time, or a value made from it, where that is a figure."""
    return (cell.seconds if value is None else value) if cell.wall_seconds.is_known else None


def _titles(cells: Sequence[Cell]) -> str:
    return " or ".join(cell.title for cell in cells)
