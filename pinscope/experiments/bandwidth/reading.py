"""What a bandwidth run concludes: its cells, arithmetic, verdict, headline and tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import Annotated

import numpy as np

from pinscope.analysis.cells import Label, Value, cells, every_combination, first
from pinscope.analysis.columns import Columns, Floats
from pinscope.analysis.models import link_limit
from pinscope.analysis.read_rows import Rows, grouped
from pinscope.analysis.statistics import Summary, are_known, compared, exceeds, is_distinct, measured, together
from pinscope.analysis.texts import Wrong, about
from pinscope.experiments.bandwidth.ways import WAYS, both_ways_seconds
from pinscope.records.run import ExperimentRun, Quantity, Table, quantity
from pinscope.units import format_bandwidth, format_bytes

LARGE = 2**24
"""Bytes from which a copy's time is mostly data, not latency: its rate may be held against the link's."""
PAYS = 1.1
"""Pinning is said to pay from the size on at which pinned copies are at least this many times faster."""
COMPARED = (("4k", "cold"), ("thp", "cold"), ("4k", "warm"), ("thp", "warm"))
"""States of pageable memory in the order in which pinned memory is compared with them; the first that was measured."""
_STATE_WORDS = {"4k": "4 KiB pages", "thp": "huge pages", "cold": "cold CPU caches", "warm": "warm CPU caches"}
TO_AND_FROM = {"h2d": "to GPU", "d2h": "from GPU", "bidirectional": "both ways at once"}
_ON_MODEL = {"h2d": "to the device", "d2h": "from the device"}


def _or_dash(name: str | None) -> str:
    return name or "–"


@dataclass(frozen=True, eq=False)
class Cell:
    """All repeats of one combination; its values are those of the observations."""

    memory: Annotated[str, Label("memory")]
    backing: Annotated[str | None, Label("pages", words=_or_dash)]
    cache: Annotated[str | None, Label("caches", words=_or_dash)]
    direction: Annotated[str, Label("direction")]
    copier: Annotated[str, Label("copier")]
    bytes: Annotated[int, Label("size", "bytes")]
    device: Annotated[int, Label("GPU", "count")]
    devices: Annotated[int, Label("GPUs at once", "count")]
    one_more_seconds: Annotated[Summary, Value("one more copy", "seconds", "less")]
    one_more_copies: Annotated[int, Value("copies", "count", make=first)]
    one_copy_seconds: Annotated[Summary, Value("one copy", "seconds", "less", row="device_seconds")]
    wall_seconds: Annotated[Summary, Value("wall time", "seconds", "less")]
    issue_seconds: Annotated[Summary, Value("issue time", "seconds", "less")]
    wrong_words: Annotated[int, Value("wrong words", "count", "less", make=sum)]

    @property
    def curve(self) -> tuple[str | int, ...]:
        """What it shares with the cells of other sizes."""
        state = self.backing or "", self.cache or ""
        return self.memory, self.direction, self.copier, self.devices, self.device, *state

    @property
    def state(self) -> str:
        """The memory and its state in words: ``pageable, 4k, cold``."""
        pages = self.backing if self.memory == "pageable" else None
        return ", ".join(filter(None, (WAYS[self.memory].title, pages, self.cache)))

    @property
    def conditions(self) -> str | None:
        """Pages and caches in words: ``4 KiB pages, cold CPU caches``; ``None`` where the run does not say."""
        words = [_STATE_WORDS[name] for name in (self.backing, self.cache) if name in _STATE_WORDS]
        return ", ".join(words) or None

    @property
    def moved_bytes(self) -> int:
        """Bytes moved in all directions together."""
        return self.bytes * (2 if self.direction == "bidirectional" else 1)

    @property
    def bytes_per_second(self) -> Annotated[float, Value("rate", "bytes/second", "more")]:
        """Median rate of one more copy, both directions together."""
        return self.moved_bytes / self.one_more_seconds.median

    def rate(self, name: str) -> Quantity:
        """The rate as findings and headlines show it, with its ±."""
        key = f"{self.memory}.{self.direction}.{'kernel_' if self.copier == 'kernel' else ''}rate"
        return measured(name, self.one_more_seconds, "bytes/second", self.bytes_per_second, key=key)

    @property
    def quartile_rates(self) -> tuple[float, float]:
        """Rates at the upper and the lower quartile of time: (slow, fast), bytes/second."""
        times = self.one_more_seconds
        return self.moved_bytes / times.upper_quartile, self.moved_bytes / times.lower_quartile


Curve = Sequence[Cell]
"""Cells of the same labels but the size, which ascends."""


def same_sizes(fast: Curve, slow: Curve) -> list[tuple[Cell, Cell]]:
    """The pairs of cells of the sizes that both curves have."""
    sizes = {cell.bytes: cell for cell in slow}
    return [(cell, sizes[cell.bytes]) for cell in fast if cell.bytes in sizes]


@dataclass(frozen=True)
class Gain:
    """Pinned copies against pageable ones, at the sizes that both have; there is one at least."""

    pairs: Sequence[tuple[Cell, Cell]]

    @property
    def pinned(self) -> Cell:
        """The largest."""
        return self.pairs[-1][0]

    @property
    def pageable(self) -> Cell:
        """Of the same size."""
        return self.pairs[-1][1]

    @property
    def bytes(self) -> int:
        """The size at which they are compared."""
        return self.pinned.bytes

    @property
    def ratio(self) -> float:
        """How many times as fast pinned copies are."""
        return self.pinned.bytes_per_second / self.pageable.bytes_per_second

    @property
    def seconds(self) -> tuple[Summary, Summary]:
        """What the ratio is made of: the pageable time over the pinned one."""
        return self.pageable.one_more_seconds, self.pinned.one_more_seconds

    @cached_property
    def start(self) -> int | None:
        """The smallest size from which on pinned copies are faster, by more than both may be off; ``None`` if none."""
        faster = takewhile(
            lambda pair: (
                pair[0].bytes_per_second >= PAYS * pair[1].bytes_per_second
                and exceeds(pair[1].one_more_seconds, pair[0].one_more_seconds)
            ),
            reversed(self.pairs),
        )
        return min((fast.bytes for fast, _ in faster), default=None)

    @property
    def everywhere(self) -> bool:
        """Whether that is the smallest size that both have."""
        return self.start == self.pairs[0][0].bytes

    @property
    def where(self) -> str:
        """``from 1 MiB on``; it is not said that below the smallest size pinned copies would be slower."""
        start = format_bytes(self.start or 0)
        return f"at every size measured, from {start}" if self.everywhere else f"from {start} on"


@dataclass(frozen=True)
class Copies:
    """What a run measured: its cells, and what verdict, findings and charts ask of them."""

    run: ExperimentRun
    rows: Rows

    @cached_property
    def cells(self) -> list[Cell]:
        """All of them, in the order of their labels and sizes: pinned memory and h2d first."""
        kinds, ways = list(WAYS), list(TO_AND_FROM)
        return sorted(
            cells(Cell, _as_counted(self.rows)),
            key=lambda cell: (kinds.index(cell.memory), ways.index(cell.direction), cell.curve, cell.bytes),
        )

    @property
    def wrong(self) -> Wrong:
        """Words that did not arrive."""
        cases = [
            (f"{cell.state} {cell.direction}, {format_bytes(cell.bytes)} by {cell.copier}", cell.wrong_words)
            for cell in self.cells
        ]
        return Wrong("content-wrong", "Data arrived wrong", "8-byte words", cases)

    @cached_property
    def curves(self) -> list[Curve]:
        """Of all GPUs."""
        return list(grouped(self.cells, lambda cell: cell.curve).values())

    @cached_property
    def alone(self) -> list[Curve]:
        """Of the run's own GPU, while no other one copied."""
        return [curve for curve in self.curves if (curve[0].devices, curve[0].device) == (1, self.run.device)]

    @cached_property
    def compared(self) -> dict[tuple[str, str, str], Curve]:
        """Memory, direction and copier → of their states the one that is compared, on the run's own GPU."""
        groups = grouped(self.alone, lambda curve: (curve[0].memory, curve[0].direction, curve[0].copier))
        return {labels: min(states, key=_rank) for labels, states in groups.items()}

    def engine(self, memory: str, direction: str) -> Curve:
        """The compared curve of copies by an engine; empty if it was not measured."""
        return self.compared.get((memory, direction, "engine"), ())

    @cached_property
    def gains(self) -> dict[str, Gain]:
        """Direction → pinned copies against pageable ones, where a size was measured of both."""
        pairs = {way: same_sizes(self.engine("pinned", way), self.engine("pageable", way)) for way in TO_AND_FROM}
        return {way: Gain(both) for way, both in pairs.items() if both}

    @cached_property
    def limit(self) -> float | None:
        """Bytes/second that the link can carry one way."""
        return link_limit(self.run)

    @cached_property
    def best_pinned(self) -> dict[str, Cell]:
        """Direction → the fastest of the large pinned copies."""
        large = {way: [cell for cell in self.engine("pinned", way) if cell.bytes >= LARGE] for way in ("h2d", "d2h")}
        return {way: max(some, key=lambda cell: cell.bytes_per_second) for way, some in large.items() if some}

    @cached_property
    def of_one_kind(self) -> list[Cell]:
        """The largest copies of one kind of memory in two directions at most: of pinned memory where there is any."""
        curves = sorted(self.compared.values(), key=lambda curve: curve[0].copier != "engine")
        cells = [curve[-1] for curve in curves if curve[0].state == curves[0][0].state][:2]
        return [cell for cell in cells if (cell.copier, cell.bytes) == (cells[0].copier, cells[0].bytes)]


of = Copies
"""All that a run measured, as verdict, headline, tables, findings and charts ask for it."""


def _as_counted(rows: Rows) -> Columns:
    """Rows of an older run, which timed one copy both ways until the last had ended, as later ones count it."""
    columns = Columns.of(rows)
    is_alone = columns.column("direction").is_("bidirectional") & columns.column("one_more_copies").is_(1)
    is_older = is_alone & ~columns.column("memory").is_("pageable")
    if not is_older.any():
        return columns
    ways = (columns.column(name).values for name in ("h2d_seconds", "d2h_seconds"))
    with np.errstate(all="raise"):
        both = both_ways_seconds(*(np.where(is_older, way, 1.0).astype(float) for way in ways))
    own = columns.column("one_more_seconds").values
    return columns.having("one_more_seconds", Floats(np.where(is_older, both, own)))


def _rank(curve: Curve) -> int:
    state = (curve[0].backing, curve[0].cache)
    return COMPARED.index(state) if state in COMPARED else -1 if not curve[0].cache else len(COMPARED)


def verdict(copies: Copies) -> str | None:
    """The first direction in which pinned memory can be compared; else what was measured of one kind of memory."""
    if copies.gains:
        way, gain = next(iter(copies.gains.items()))
        one_way = [copies.gains[name] for name in ("h2d", "d2h") if name in copies.gains]
        starts = {gain.start if are_known(*gain.seconds) else None for gain in one_way}
        return f"{_compared(_ways(copies)[way], gain, len(one_way) == 2 and len(starts) == 1)}."
    return _one_kind(copies) if copies.of_one_kind else None


def _ways(copies: Copies) -> dict[str, str]:
    """Direction → words."""
    return TO_AND_FROM if copies.run.lab == "cuda" else TO_AND_FROM | _ON_MODEL


def _compared(way: str, gain: Gain, alike: bool) -> str:
    """``Pin host buffers from 4 KiB on (smallest measured): unpinned, 1 GiB to GPU is about 6.5 times slower``.

    Args:
        alike: whether the other direction pays from the same size on; else the sentence is about this one only.
    """
    size, what = format_bytes(gain.bytes), f"copies {way}"
    told_apart = is_distinct(gain.ratio, *gain.seconds)
    if not are_known(*gain.seconds) and not told_apart:
        return f"Measure again: {what} of {size} vary too much to tell whether pinning makes them faster"
    if gain.start is None:
        fast, slow = (format_bandwidth(cell.bytes_per_second) for cell in (gain.pinned, gain.pageable))
        less = told_apart and gain.ratio * PAYS < 1
        makes = f"makes {what} slower" if less else f"makes no difference to {what} that ± could tell"
        return f"Pinning {makes}: {fast.removesuffix(' GB/s')} against {slow} at {size}"
    times = f"{about(together(*gain.seconds))}{gain.ratio:.1f} times " if are_known(*gain.seconds) else ""
    slower = f"unpinned, {size} {f'{way} ' if alike else ''}is {times}slower"
    if gain.start >= gain.bytes:
        return f"Pin host buffers of {size}{'' if alike else f' copied {way}'}: {slower}"
    start = f"from {format_bytes(gain.start)} on{' (smallest measured)' if gain.everywhere else ''}"
    return f"Pin {'host buffers' if alike else f'buffers copied {way}'} {start}: {slower}"


def _one_kind(copies: Copies) -> str:
    """What one kind of memory reaches, where no two kinds can be compared."""
    kind, size = copies.of_one_kind[0], format_bytes(copies.of_one_kind[0].bytes)
    rates = " and ".join(
        f"{format_bandwidth(cell.bytes_per_second)} {_ways(copies)[cell.direction]}" for cell in copies.of_one_kind
    )
    return f"{_kind(kind)} copies of {size}{_by(kind, ' ')} run at {rates}."


def _kind(cell: Cell) -> str:
    return WAYS[cell.memory].title.capitalize()


def headline(copies: Copies) -> tuple[Quantity, ...]:
    """Rate, gain and share of the link to the device, then the same from it; else what one kind of memory reaches."""
    return tuple(_pinned(copies)) or tuple(
        cell.rate(f"{_kind(cell)} {_ways(copies)[cell.direction]}{_by(cell, ', ')}, {format_bytes(cell.bytes)}")
        for cell in copies.of_one_kind
    )


def _by(cell: Cell, before: str) -> str:
    return f"{before}by a kernel" if cell.copier == "kernel" else ""


def _pinned(copies: Copies) -> Iterator[Quantity]:
    reason = "the copies were faster than the limit that PinScope assumes for the link"
    for way in ("h2d", "d2h"):
        words = _ways(copies)[way]
        if pinned := copies.engine("pinned", way):
            yield pinned[-1].rate(f"Pinned {words}, {format_bytes(pinned[-1].bytes)}")
        if gain := copies.gains.get(way):
            state = gain.pageable.conditions
            name = f"Pinned ÷ pageable rate{f' ({state})' if state else ''}, {words}, {format_bytes(gain.bytes)}"
            yield compared(name, *gain.seconds, key=f"pinned.{way}.gain")
        if pinned and copies.limit and pinned[-1].bytes >= LARGE:
            share, key = pinned[-1].bytes_per_second / copies.limit, f"pinned.{way}.link_share"
            name = f"Share of the link's limit, pinned {words}, {format_bytes(pinned[-1].bytes)}"
            if share <= 1:
                yield measured(name, pinned[-1].one_more_seconds, "share", share, key=key)
            else:
                yield quantity(name, None, "share", reason=reason, key=key)


def tables(copies: Copies) -> Iterator[Table]:
    """Every combination."""
    yield every_combination(
        copies.cells,
        "Medians. One copy starts from an idle stream; one more copy is each of so many in a row, and rate and ± "
        "are its own. Rates of bidirectional copies are the sum of both "
        "directions while both copy; pageable ones go in turn, and count until the last has ended.",
    )
