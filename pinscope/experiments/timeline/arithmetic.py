"""A kept live view as arithmetic: what was pinned when, who held it, who grew steadily, where samples are missing."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Any

from pinscope.analysis.held import held_bytes
from pinscope.analysis.rows import Row, grouped
from pinscope.analysis.rules.growth import Amounts
from pinscope.analysis.rules.series import gap_seconds
from pinscope.analysis.statistics import summarize
from pinscope.records.run import Run

_HELD = ("host_alloc_bytes", "registered_bytes", "locked_bytes", "vm_pin_bytes", "driver_memory_bytes")
"""What a holder's row says of its memory, in the order of :func:`held_bytes`."""
GPU_RATES = ("rx_bytes_per_second", "tx_bytes_per_second")
"""What goes over PCIe, from the GPU's side."""


@dataclass
class Life:
    """A process that holds pinned or locked memory, from where it was first seen."""

    pid: int
    name: str
    user: str | None
    container: str | None
    first_seconds: float
    came: bool
    """It was not there when the timeline began."""
    last_seconds: float = 0.0
    gone: bool = False
    """It ended, or gave all back, before the timeline ended."""
    amounts: list[tuple[float, int]] = field(default_factory=list)
    """What it held from each of these seconds on; empty if that was never known."""
    pinned: list[tuple[float, int]] = field(default_factory=list)
    """The same without what mlock holds."""
    locked: list[tuple[float, int]] = field(default_factory=list)
    """What mlock holds."""
    driver: list[tuple[float, int]] = field(default_factory=list)
    """Driver memory; it is in ``amounts`` and ``pinned`` too."""
    hidden: bool = False
    """At some time nobody could tell its cudaHostAlloc memory."""

    @property
    def first_bytes(self) -> int | None:
        return self.amounts[0][1] if self.amounts else None

    @property
    def peak_bytes(self) -> int | None:
        return max((amount for _, amount in self.amounts), default=None)

    @property
    def last_bytes(self) -> int | None:
        """At the end of the timeline; 0 if it is gone."""
        return self.amounts[-1][1] if self.amounts else None

    @property
    def grew_bytes(self) -> int | None:
        """From what it held first, or from 0 if it came during the timeline, to its peak."""
        if self.peak_bytes is None or self.first_bytes is None:
            return None
        return self.peak_bytes - (0 if self.came else self.first_bytes)


@dataclass(frozen=True)
class Gap:
    """A time without samples."""

    start_seconds: float
    end_seconds: float
    samples: int
    """How many are missing."""
    reason: str | None
    """Why the first of them failed; ``None`` if nobody tried to take one."""

    @property
    def seconds(self) -> float:
        return self.end_seconds - self.start_seconds


@dataclass(frozen=True)
class Watched:
    """A timeline, sorted out."""

    interval_seconds: float
    end_seconds: float
    probed: bool
    """Registrations were followed."""
    chosen: bool
    """Only certain processes were watched."""
    host: tuple[Row, ...]
    lives: tuple[Life, ...]
    """Most bytes at their peak first."""
    devices: Mapping[int, tuple[Row, ...]]
    events: tuple[Row, ...]
    gaps: tuple[Gap, ...]

    @property
    def last_seconds(self) -> float:
        """When the last sample was taken. Later ones failed."""
        return float(self.host[-1]["elapsed_seconds"]) if self.host else 0.0

    @property
    def missing_share(self) -> float:
        """Of all samples that there should be."""
        missing = sum(gap.samples for gap in self.gaps)
        return missing / (missing + len(self.host)) if missing else 0.0

    @property
    def gap_seconds(self) -> float:
        """Samples that are further apart than this have a gap between them."""
        return gap_seconds(self.interval_seconds)


@dataclass
class Change:
    """One or several steps of one amount of a process, all in the same direction."""

    begun: datetime
    seconds: float
    """When the first of them was, since the timeline began."""
    pid: int
    name: str
    event: str
    what: str
    times: int
    change_bytes: int
    bytes: int
    """Held of it after the last one."""


def watched(run: Run, rows: Sequence[Row]) -> Watched:
    """Sort the rows of a timeline out."""
    host = tuple(row for row in rows if row["kind"] == "host")
    end = max((row["elapsed_seconds"] for row in rows), default=0.0)
    interval = _interval(run, host)
    lives = sorted(_lives(rows, host, end), key=lambda life: life.peak_bytes or 0, reverse=True)
    devices = grouped((row for row in rows if row["kind"] == "device"), lambda row: int(row["device"]))
    return Watched(
        interval_seconds=interval,
        end_seconds=end,
        probed=bool(run.params.get("probe")),
        chosen=bool(run.params.get("pids")),
        host=host,
        lives=tuple(lives),
        devices={index: tuple(devices[index]) for index in sorted(devices)},
        events=tuple(row for row in rows if row["kind"] == "event"),
        gaps=tuple(_gaps(host, [row for row in rows if row["kind"] == "missed"], interval, end)),
    )


def merged(events: Iterable[Row]) -> list[Change]:
    """Events with successive ones of one kind put together: a thousand small steps are one growth."""
    found: list[Change] = []
    last: dict[tuple[int, str], Change] = {}
    for row in events:
        before = last.get((row["pid"], row["what"]))
        if before is not None and before.event == row["event"] and before.name == row["name"]:
            before.times += 1
            before.change_bytes += row["change_bytes"]
            before.bytes = row["bytes"]
            continue
        change = Change(
            row["taken_at"],
            row["elapsed_seconds"],
            row["pid"],
            row["name"],
            row["event"],
            row["what"],
            1,
            row["change_bytes"],
            row["bytes"],
        )
        last[row["pid"], row["what"]] = change
        found.append(change)
    return found


def reason_of(row: Row, name: str) -> str | None:
    """Why a figure of a host's or a GPU's row is null."""
    for line in (row["missing"] or "").splitlines():
        key, separator, reason = line.partition(": ")
        if separator and key == name:
            return str(reason)
    return None


def extreme(
    series: Sequence[tuple[float, float]], pick: Callable[..., tuple[float, float]]
) -> tuple[float, float] | None:
    """The first point of the least (``pick=min``) or the largest value; ``None`` of nothing."""
    return pick(series, key=lambda point: point[1]) if series else None


def points(rows: Iterable[Row], name: str) -> list[tuple[float, float]]:
    """(elapsed seconds, value) of those rows in which the value is known."""
    return [(row["elapsed_seconds"], row[name]) for row in rows if row.get(name) is not None]


def thinned(series: Sequence[tuple[float, float]], most: int) -> list[tuple[float, float]]:
    """At most about so many points that look the same: of each stretch the first, the last, the least and the most."""
    if len(series) <= most:
        return list(series)
    size = -(-len(series) * 4 // most)
    kept: list[tuple[float, float]] = []
    for begin in range(0, len(series), size):
        stretch = range(begin, min(begin + size, len(series)))
        low, high = (pick(stretch, key=lambda place: series[place][1]) for pick in (min, max))
        kept += (series[place] for place in sorted({stretch[0], low, high, stretch[-1]}))
    return kept


def summed(every: Iterable[Amounts]) -> list[tuple[float, int]]:
    """What all of these come to, as a step function."""
    steps: list[tuple[float, int]] = []
    for amounts in every:
        before = 0
        for at, amount in amounts:
            steps.append((at, amount - before))
            before = amount
    together: dict[float, int] = {}
    total = 0
    for at, step in sorted(steps):
        total += step
        together[at] = total
    return list(together.items())


def sampled(amounts: Amounts, times: Iterable[float], until: float) -> list[tuple[float, float]]:
    """A step function at those of the times, in order, that lie between its first step and ``until``."""
    found: list[tuple[float, float]] = []
    place = 0
    for at in times:
        if not amounts or at < amounts[0][0] or at > until:
            continue
        while place + 1 < len(amounts) and amounts[place + 1][0] <= at:
            place += 1
        found.append((at, amounts[place][1]))
    return found


def stretches(series: Sequence[tuple[float, float]], gap_seconds: float) -> list[list[tuple[float, float]]]:
    """The series, cut where two of its points are further apart than ``gap_seconds``."""
    cut: list[list[tuple[float, float]]] = []
    for point in series:
        if not cut or point[0] - cut[-1][-1][0] > gap_seconds:
            cut.append([])
        cut[-1].append(point)
    return cut


def _interval(run: Run, host: Sequence[Row]) -> float:
    """As it was asked for; a timeline that does not say is judged by its samples."""
    asked = run.params.get("interval_seconds")
    if isinstance(asked, int | float) and asked > 0:
        return float(asked)
    times = [row["elapsed_seconds"] for row in host]
    apart = [after - before for before, after in pairwise(times)]
    return summarize(apart).median if apart else 1.0


def _lives(rows: Sequence[Row], host: Sequence[Row], end: float) -> Iterable[Life]:
    looked = (row["repeat"] for row in host if row["explained_bytes"] is not None)
    first_sample = next(looked, 0)  # what holders had before they could be looked at is no growth
    last_seen = host[-1]["elapsed_seconds"] if host else end
    lives: dict[tuple[Any, ...], Life] = {}
    for row in rows:
        if row["kind"] != "holder":
            continue
        now = row["elapsed_seconds"]
        life = lives.setdefault(
            (row["pid"], row["started_at"]),
            Life(row["pid"], row["name"], row["user"], row["container"], now, row["repeat"] > first_sample),
        )
        life.gone = row["gone"]
        life.last_seconds = now if row["gone"] else last_seen
        host_alloc, registered, locked, vm_pin, driver = (row.get(name) for name in _HELD)
        life.hidden = life.hidden or host_alloc is None
        for amounts, amount in (
            (life.amounts, held_bytes(host_alloc, registered, locked, vm_pin, driver)),
            (life.pinned, held_bytes(host_alloc, registered, None, vm_pin, driver)),
            (life.locked, locked),
        ):
            if amount is not None:
                amounts.append((now, amount))
        if (driver_memory := row.get("driver_memory_bytes")) is not None:
            life.driver.append((now, driver_memory))
    return lives.values()


def _gaps(host: Sequence[Row], missed: Sequence[Row], interval: float, end: float) -> Iterable[Gap]:
    times = sorted(row["elapsed_seconds"] for row in host)
    limit = gap_seconds(interval)
    failed = sorted(missed, key=lambda row: float(row["elapsed_seconds"]))
    when = [row["elapsed_seconds"] for row in failed]
    places = [0, *(bisect_left(when, at) for at in times), len(when)]
    for begin, until, (first, after) in zip([0.0, *times], [*times, end], pairwise(places), strict=True):
        count = after - first
        if until - begin > limit:
            count = max(round((until - begin) / interval) - 1, count)
        if count > 0:
            yield Gap(begin, until, count, failed[first]["reason"] if after > first else None)
