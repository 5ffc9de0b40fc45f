"""Ways from pageable memory to the GPU: their times, what they hold the CPU for, and which is fastest for what."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from pinscope.analysis.rows import Row, Rows, counted, grouped, labels
from pinscope.analysis.statistics import Summary, summarize

WAY_TITLES: Mapping[str, str] = {
    "plain": "plain copy",
    "plain_async": "plain copy, asynchronous call",
    "plain_fresh": "plain copy of fresh memory",
    "pin_then_copy": "pin, then copy",
    "register": "register, copy, unregister",
    "reused_buffer": "one pinned buffer, kept",
    "two_buffers": "two pinned buffers in turn",
    "fill_only": "two buffers: filling alone",
    "copy_only": "two buffers: copying alone",
    "in_place": "data made in pinned memory",
    "in_place_spin": "data made in pinned memory, spinning",
    "cupy_asarray_first": "cupy.asarray, newly pinned",
    "cupy_asarray": "cupy.asarray, pool reused",
    "torch_to": "PyTorch to()",
    "torch_pin_then_to_first": "pin_memory().to(), newly pinned",
    "torch_pin_then_to": "pin_memory().to(), pool reused",
    "torch_pinned": "PyTorch to(), tensor made pinned",
}
BY_THREADS = ("reused_buffer", "two_buffers", "fill_only", "copy_only")
"""Ways in which the program says how many CPU threads copy."""
HALVES = ("fill_only", "copy_only")
PREPARED = ("pin_then_copy", "register", "reused_buffer", "torch_pin_then_to_first", "torch_pin_then_to")
"""Ways that get the data into pinned memory once, for all uses."""
PINNED_SOURCE = ("in_place", "in_place_spin", "torch_pinned")
"""Ways for data that was never in pageable memory."""
TORCH = ("torch_to", "torch_pin_then_to_first", "torch_pin_then_to", "torch_pinned")
FIRSTS = ("cupy_asarray_first", "torch_pin_then_to_first")
"""Ways that find no pinned memory kept from before."""
CHOICES = tuple(way for way in WAY_TITLES if way not in (*HALVES, *PINNED_SOURCE, *FIRSTS, "plain_fresh"))
"""What a program may choose for data that lies in pageable memory, each again and again."""
USUAL_BYTES = 2**28
"""Sentences are about the size nearest to this."""
AS_GOOD = 1.1
"""Ways whose times differ by this factor at most, to two decimals, are as good as each other."""
_LABELS = ("way", "bytes", "threads", "uses")


@dataclass(frozen=True)
class Cell:
    """All repeats of one combination.

    Attributes:
        way, bytes, threads, uses: which.
        wall_seconds: of all uses together.
        prepare_seconds: of that, before the first copy began (median).
        finish_seconds: of that, after the last copy (median).
        cpu_seconds: of all threads of the process, for one repeat (mean: short ones are counted in clock ticks).
        thread_cpu_seconds: of that, of the thread that called.
        wrong: repeats in which something did not arrive.
    """

    way: str
    bytes: int
    threads: int
    uses: int
    wall_seconds: Summary
    prepare_seconds: float
    finish_seconds: float
    cpu_seconds: float
    thread_cpu_seconds: float
    wrong: int

    @property
    def title(self) -> str:
        """The way for people, with the number of threads where the program chooses it."""
        name = WAY_TITLES[self.way]
        if self.way not in BY_THREADS:
            return name
        return f"{name}, {threads_words(self.threads)}"

    @property
    def bytes_per_second(self) -> float:
        """What was brought, over the time from ready to there."""
        return self.bytes * self.uses / self.wall_seconds.median

    @property
    def copy_cpu_seconds(self) -> float:
        """Of all threads of the process, for one use."""
        return self.cpu_seconds / self.uses

    @property
    def each_seconds(self) -> float:
        """One more use of the same data."""
        return (self.wall_seconds.median - self.prepare_seconds - self.finish_seconds) / self.uses


@dataclass(frozen=True)
class First:
    """The first time of a way in a process that has not used it with this size.

    Attributes:
        way, bytes, threads: which.
        setup_seconds: to get what is kept, before.
        wall_seconds: the first use.
    """

    way: str
    bytes: int
    threads: int
    setup_seconds: float
    wall_seconds: float


def cells(rows: Iterable[Row]) -> list[Cell]:
    """Counted repeats, grouped; in the order measured."""
    return [_cell(group) for group in grouped(counted(rows), labels(*_LABELS)).values()]


def _cell(rows: Rows) -> Cell:
    def middle(name: str) -> float:
        return summarize([row[name] for row in rows]).median

    return Cell(
        **{name: rows[0][name] for name in _LABELS},
        wall_seconds=summarize([row["wall_seconds"] for row in rows]),
        prepare_seconds=middle("prepare_seconds"),
        finish_seconds=middle("finish_seconds"),
        cpu_seconds=fmean(row["cpu_seconds"] for row in rows),
        thread_cpu_seconds=fmean(row["thread_cpu_seconds"] for row in rows),
        wrong=sum(bool(row["wrong_words"]) for row in rows),
    )


def firsts(rows: Iterable[Row]) -> list[First]:
    """What each way took the first time, with its set-up."""
    return [
        First(row["way"], row["bytes"], row["threads"], row["setup_seconds"], row["wall_seconds"])
        for row in rows
        if row["setup_seconds"] is not None and row["way"] not in HALVES
    ]


def slower(one: Cell, other: Cell) -> float:
    """How many times as long ``one`` takes as ``other``."""
    return one.wall_seconds.median / other.wall_seconds.median


def as_good(one: Cell, other: Cell) -> bool:
    """Whether neither is faster by more than :data:`AS_GOOD`."""
    times = slower(one, other)
    return round(max(times, 1 / times), 2) <= AS_GOOD


def sizes(found: Iterable[Cell]) -> list[int]:
    """Those measured, ascending."""
    return sorted({cell.bytes for cell in found})


def numbers_of_uses(found: Iterable[Cell]) -> list[int]:
    """Those measured, ascending."""
    return sorted({cell.uses for cell in found})


def usual_size(found: Sequence[Cell]) -> int:
    """The measured size that is nearest to :data:`USUAL_BYTES`."""
    return min(sizes(found), key=lambda size: abs(math.log(size / USUAL_BYTES)))


def by_way(found: Iterable[Cell], size: int, uses: int = 1) -> dict[str, Cell]:
    """Way → its cell with the best number of threads: of those as good as the fastest, with the least of the CPU."""
    alike = grouped((cell for cell in found if (cell.bytes, cell.uses) == (size, uses)), lambda cell: cell.way)
    return {way: _frugal(cells) for way, cells in alike.items()}


def winners(found: Iterable[Cell], size: int, uses: int = 1) -> list[Cell]:
    """Of what a program may choose for pageable data: the fastest and all as good, with the least of the CPU first."""
    ways = by_way(found, size, uses)
    ranked = _ranked([ways[way] for way in CHOICES if way in ways])
    return sorted((cell for cell in ranked if as_good(cell, ranked[0])), key=lambda cell: cell.cpu_seconds)


def _ranked(alike: Sequence[Cell]) -> list[Cell]:
    return sorted(alike, key=lambda cell: cell.wall_seconds.median)


def _frugal(alike: Sequence[Cell]) -> Cell:
    ranked = _ranked(alike)
    return min((cell for cell in ranked if as_good(cell, ranked[0])), key=lambda cell: cell.cpu_seconds)


def uses_until_paid(way: Cell, plain: Cell) -> int | None:
    """From how many uses of the same data a way takes less time than plain copies; ``None``: never.

    Both measured for one use: a way takes its parts before and after the copies once, and the copies each time.
    """
    gain = plain.each_seconds - way.each_seconds
    if gain <= 0:
        return None
    once = way.prepare_seconds + way.finish_seconds - plain.prepare_seconds - plain.finish_seconds
    return max(math.floor(once / gain) + 1, 1)


@dataclass(frozen=True)
class Pipeline:
    """Two buffers in turn beside each of their halves alone.

    Attributes:
        whole: both side by side.
        filling: the CPU alone.
        copying: the GPU's engine alone.
    """

    whole: Cell
    filling: Cell
    copying: Cell

    @property
    def slower_half(self) -> Cell:
        """What the whole cannot be faster than."""
        return max(self.filling, self.copying, key=lambda cell: cell.wall_seconds.median)

    @property
    def beyond_bound(self) -> float:
        """The whole's time over that of its slower half."""
        return slower(self.whole, self.slower_half)


def pipelines(found: Sequence[Cell]) -> list[Pipeline]:
    """For each size and number of threads for which all three were measured, once."""
    known = {(cell.way, cell.bytes, cell.threads): cell for cell in found if cell.uses == 1}
    return [
        Pipeline(cell, filling, copying)
        for (way, size, threads), cell in known.items()
        if way == "two_buffers"
        and (filling := known.get(("fill_only", size, threads)))
        and (copying := known.get(("copy_only", size, threads)))
    ]


def times_words(times: float) -> str:
    """``5.2 times``, ``0.23 times``."""
    return f"{times:.{1 if times >= 1.995 else 2}f} times"


def threads_words(count: int) -> str:
    """``1 thread``, ``8 threads``."""
    return f"{count} thread{'' if count == 1 else 's'}"


_PHRASES: Mapping[str, str] = {
    "plain": "a plain copy",
    "plain_async": "a plain asynchronous copy",
    "pin_then_copy": "a buffer that is pinned each time",
    "register": "registering it where it lies",
    "reused_buffer": "one pinned buffer that is kept",
    "two_buffers": "two pinned buffers in turn",
    "cupy_asarray": "cupy.asarray",
    "torch_to": "PyTorch's to()",
    "torch_pin_then_to": "PyTorch's pin_memory().to() in pinned memory that it has kept",
    "in_place": "data made in pinned memory",
}


def phrase(cell: Cell) -> str:
    """The way inside a sentence."""
    words = _PHRASES.get(cell.way, WAY_TITLES[cell.way])
    return f"{words} ({threads_words(cell.threads)})" if cell.way in BY_THREADS else words
