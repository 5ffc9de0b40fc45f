"""What a kept live view tells, from its rows alone: who held what when, verdict, headline and tables."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import attrgetter, itemgetter
from typing import Any

from pinscope.analysis.read_rows import Kind, Row, grouped
from pinscope.analysis.rules import LEAK_BYTES, Amounts, Growth, gap_seconds, held_bytes, steady_growth
from pinscope.records.figure import figures
from pinscope.records.parameters import Inputs, parameter
from pinscope.records.run import Quantity, Run, Table, quantity, table
from pinscope.records.snapshot import Holder
from pinscope.records.timeline import TimelineRow
from pinscope.units import format_bytes, format_duration

MOST_HOLDERS = 100
MOST_CHANGES = 100

_WHAT_WORDS = {figure.field.removesuffix("_bytes"): figure.short or "" for figure in figures(Holder)}
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
    """What it held but for what mlock holds."""
    locked: list[tuple[float, int]] = field(default_factory=list)
    """What mlock holds."""
    driver: list[tuple[float, int]] = field(default_factory=list)
    """Driver memory; it is in ``amounts`` and ``pinned`` too."""
    hidden: bool = False
    """At some time nobody could tell its cudaHostAlloc memory."""

    def until_gone(self, amounts: Amounts) -> Amounts:
        """Without the last step of a process that is gone, to 0."""
        return amounts[:-1] if self.gone else amounts

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
    host: tuple[Row, ...]
    lives: tuple[Life, ...]
    """Most bytes at their peak first."""
    devices: Mapping[int, tuple[Row, ...]]
    events: tuple[Row, ...]
    gaps: tuple[Gap, ...]
    run: Run

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


def of(run: Run, rows: Sequence[Row]) -> Watched:
    """Sort the rows of a timeline out."""
    host = tuple(row for row in rows if row["kind"] == "host")
    end = max((row["elapsed_seconds"] for row in rows), default=0.0)
    asked = run.params.get("interval_seconds")
    interval = float(asked) if isinstance(asked, int | float) and asked > 0 else 1.0
    lives = sorted(_lives(rows, host, end), key=lambda life: life.peak_bytes or 0, reverse=True)
    devices = grouped((row for row in rows if row["kind"] == "device"), lambda row: int(row["device"]))
    return Watched(
        interval_seconds=interval,
        end_seconds=end,
        probed=bool(run.params.get("probe")),
        host=host,
        lives=tuple(lives),
        devices={index: tuple(devices[index]) for index in sorted(devices)},
        events=tuple(row for row in rows if row["kind"] == "event"),
        gaps=tuple(_gaps(host, [row for row in rows if row["kind"] == "missed"], interval, end)),
        run=run,
    )


def merged(events: Iterable[Row]) -> list[dict[str, Any]]:
    """Events with successive ones of one kind put together, and how many ``times``: many small steps are one growth."""
    changes: list[dict[str, Any]] = []
    last: dict[tuple[int, str], dict[str, Any]] = {}
    for row in events:
        before = last.get((row["pid"], row["what"]))
        if before is not None and (before["event"], before["name"]) == (row["event"], row["name"]):
            before["times"] += 1
            before["change_bytes"] += row["change_bytes"]
            before["bytes"] = row["bytes"]
            continue
        last[row["pid"], row["what"]] = dict(row) | {"times": 1}
        changes.append(last[row["pid"], row["what"]])
    return changes


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
    samples: list[tuple[float, float]] = []
    place = 0
    for at in times:
        if not amounts or at < amounts[0][0] or at > until:
            continue
        while place + 1 < len(amounts) and amounts[place + 1][0] <= at:
            place += 1
        samples.append((at, amounts[place][1]))
    return samples


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


def who(life: Life) -> str:
    """A process as people name it."""
    return f"{life.name or 'process'} (pid {life.pid})"


def when(seconds: float) -> str:
    """A moment of the timeline."""
    return f"after {format_duration(seconds)}" if seconds else "at the beginning"


def pins(row: Row) -> int | None:
    """The kernel's count; before Linux 5.7 it has none, and there it is what the holders explain. ``None`` where it is
    more than the host has, as older versions recorded pins of the same memory."""
    pinned: int | None = row["pinned_bytes"] if row["pinned_bytes"] is not None else row["explained_bytes"]
    return None if pinned is not None and 0 < row["total_bytes"] < pinned else pinned


def leaks(seen: Watched) -> list[tuple[Life, Growth]]:
    """Processes whose pinned memory grew as a leak does, to their end or to the last sample; the most first."""
    growths = [
        (life, growth)
        for life in seen.lives
        if (growth := steady_growth(life.until_gone(life.pinned), life.last_seconds)) is not None
    ]
    return sorted(growths, key=lambda pair: pair[1].bytes, reverse=True)


MUCH = LEAK_BYTES
"""Less than this is no change: the kernel counts pins by processor, and every host has some of its own."""
BEYOND = 1.1
"""A peak that is further above beginning and end than this is the answer."""


def timeline_verdict(seen: Watched, kept: Life | None) -> str | None:
    """How much was pinned, by whom, and whether it grew, as a leak does or not; ``None`` where it is not known."""
    if leaks(seen):
        life, growth = leaks(seen)[0]
        taken = format_bytes(growth.bytes + growth.returned_bytes)
        back = f"only {format_bytes(growth.returned_bytes)}" if growth.returned_bytes else "nothing"
        return f"{who(life)} looks like it leaks: it pinned {taken} in {growth.rises:,} steps and freed {back}."
    amounts, what = pinned_amounts(seen)
    peak = extreme(amounts, max)
    if peak is None:
        return None
    seconds = amounts[-1][0] - amounts[0][0]
    during = f"in {format_duration(seconds)}" if seconds else "in the only sample"
    if not peak[1]:
        return f"Nothing was pinned {during}{_locked(seen)}."
    if not seconds:
        return f"{format_bytes(peak[1])} was pinned {during}{_holder(seen, peak[0])}."
    course, at = _course(amounts, what, during)
    if kept and amounts[-1][1] - amounts[0][1] >= MUCH and at == amounts[-1][0]:
        own = [(second, float(_amount_at(kept.pinned, second))) for second, _ in amounts]
        grown = format_bytes(own[-1][1] - own[0][1])
        return f"No leak seen {during}: {who(kept)} pinned {grown}{_rise(own)} and kept it."
    return f"{course}{_holder(seen, at)}."


def pinned_amounts(seen: Watched) -> tuple[list[tuple[float, float]], str]:
    """What was pinned at each sample, with the driver memory of holders, which no count of pins has."""
    rows = [row for row in seen.host if pins(row) is not None]
    times = [row["elapsed_seconds"] for row in rows]
    driver = dict(sampled(summed(life.driver for life in seen.lives), times, seen.last_seconds))
    what = "Pinned and driver memory" if any(driver.values()) else "Pinned memory"
    return [(at, (pins(row) or 0) + driver.get(at, 0.0)) for at, row in zip(times, rows, strict=True)], what


def _course(amounts: Sequence[tuple[float, float]], what: str, during: str) -> tuple[str, float]:
    """How it went from the beginning to the end, and the moment at which to ask who holds it."""
    (_, first), (end, last) = amounts[0], amounts[-1]
    at, peak = max(amounts, key=lambda point: point[1])
    begun, ended, most = (format_bytes(value) for value in (first, last, peak))
    if peak - max(first, last) >= MUCH and peak > BEYOND * max(first, last):
        return f"{what} peaked at {most} {when(at)} (end: {ended})", at
    if last - first >= MUCH:
        return f"{what} grew from {begun} to {ended} {during}", end
    if first - last >= MUCH:
        return f"{what} fell from {begun} to {ended} {during}", end
    if peak < MUCH:
        return f"{what} was at most {most} {during}", at
    return f"{what} stayed near {ended} {during.replace('in', 'for', 1)}", end


def _rise(amounts: Sequence[tuple[float, float]]) -> str:
    """`` (most within 12.0 s)``: the rise time, from 10 to 90 % of the growth; empty where it is long."""
    (start, first), (end, last) = amounts[0], amounts[-1]
    tenth = (last - first) / 10
    high = next(at for at, amount in amounts if amount >= last - tenth)
    low = max(at for at, amount in amounts if amount <= first + tenth and at <= high)
    return f" (most within {format_duration(high - low)})" if high - low <= (end - start) / 2 else ""


def _holder(seen: Watched, at: float) -> str:
    """Who held most of it then."""
    held = [(amount, life) for life in seen.lives if (amount := _amount_at(life.pinned, at)) >= MUCH]
    if not held:
        return ""
    amount, life = max(held, key=lambda pair: pair[0])
    return f", {who(life)} had {'' if len(held) == 1 else 'most, '}{format_bytes(amount)}"


def _locked(seen: Watched) -> str:
    """Who locked most with mlock, where that is all there is."""
    most = max(((amount, life) for life in seen.lives for _, amount in life.locked), key=itemgetter(0), default=None)
    return f", but {who(most[1])} locked up to {format_bytes(most[0])} with mlock" if most and most[0] >= MUCH else ""


def _amount_at(amounts: Amounts, at: float) -> int:
    """0 before its first step."""
    return next((amount for begun, amount in reversed(amounts) if begun <= at), 0)


@dataclass(frozen=True)
class _Peak:
    """A figure of the headline, and whose it was and when; ``value`` in bytes, ``None`` for a ``reason``."""

    key: str
    name: str
    value: float | None = None
    reason: str | None = None
    of: str = "host"
    seconds: float | None = None
    """``None`` where it was always the same."""


def headline(seen: Watched) -> Iterator[Quantity]:
    """None of a timeline without samples."""
    if not seen.host:
        return
    most, grown, *others = _peaks(seen)
    pinned = points(seen.host, "pinned_bytes")
    end = _Peak("pinned_at_end", "Pinned at the end", pinned[-1][1] if pinned else None, most.reason)
    for peak in (most, end, grown, *others):
        yield quantity(peak.name, peak.value, "bytes", reason=peak.reason, key=peak.key)
    process = None if grown.value is None else grown.of
    yield quantity(
        grown.name.replace("Grew", "Process that grew"), process, "text", reason=grown.reason, key="grew_most_process"
    )


def _peaks(seen: Watched) -> tuple[_Peak, ...]:
    return (
        _peak_of_host(seen, "most_pinned", "Most pinned", "pinned_bytes", max),
        _grew_most(seen),
        _peak_of_host(seen, "least_available", "Least memory available", "available_bytes", min),
        _peak_of_host(seen, "least_left", "Least memory left in the control group", "cgroup_headroom_bytes", min),
        _most_uncharged(seen),
    )


def _peak_of_host(seen: Watched, key: str, name: str, field: str, pick: Callable[..., Any]) -> _Peak:
    series = points(seen.host, field)
    moment = extreme(series, pick)
    if moment is None:
        return _Peak(key, name, reason=reason_of(seen.host[-1], field) or _NOT_REPORTED)
    at, most = moment
    return _Peak(key, name, most, seconds=at if any(value != most for _, value in series) else None)


_NOT_REPORTED = "it was not reported"


def _grew_most(seen: Watched) -> _Peak:
    life = max(seen.lives, key=lambda life: life.grew_bytes or 0, default=None)
    if life is None or not life.grew_bytes:
        return _Peak("grew_most", "Grew most", reason="no holder grew" if seen.lives else "no process held any")
    how = "" if any(amount for _, amount in life.pinned) else ", locked by mlock, not pinned"
    at = next(at for at, amount in life.amounts if amount == life.peak_bytes)
    return _Peak("grew_most", f"Grew most{how}", life.grew_bytes, of=who(life), seconds=at)


def _most_uncharged(seen: Watched) -> _Peak:
    key, name = "most_uncharged", "Most GPU memory charged to no process"
    peaks = [(index, extreme(points(rows, "unattributed_bytes"), max)) for index, rows in seen.devices.items()]
    known = [(index, *peak) for index, peak in peaks if peak is not None]
    if known:
        index, at, most = max(known, key=itemgetter(2))
        return _Peak(key, name, most, of=f"GPU {index}", seconds=at)
    last = next((rows[-1] for rows in seen.devices.values()), None)
    row, field = (seen.host[-1], "devices") if last is None else (last, "unattributed_bytes")
    return _Peak(key, name, reason=reason_of(row, field) or _NOT_REPORTED)


def tables(seen: Watched) -> tuple[Table, ...]:
    """Highs and lows, holders, GPUs and what happened."""
    return (_highs_and_lows(seen), _holders(seen), _devices(seen), _events(seen)) if seen.host else ()


def _highs_and_lows(seen: Watched) -> Table:
    return table(
        "Highs and lows",
        {"figure": "text", "of": "text", "bytes": "bytes", "after": "seconds"},
        [(peak.name, peak.of, peak.value, peak.seconds) for peak in _peaks(seen) if peak.value is not None],
        note="After: since the recording began, the first time; empty where it was always the same.",
    )


_Columns = Mapping[str, tuple[str, Callable[[Any], Any]]]
"""Heading → unit, and what stands there of a row's subject."""
_OF_HOLDER: _Columns = {
    "process": ("text", attrgetter("name")),
    "pid": ("text", lambda life: str(life.pid)),
    "user": ("text", attrgetter("user")),
    "container": ("text", lambda life: life.container or "–"),
    "first seen": ("seconds", attrgetter("first_seconds")),
    "last seen": ("seconds", attrgetter("last_seconds")),
    "held first": ("bytes", attrgetter("first_bytes")),
    "at its peak": ("bytes", attrgetter("peak_bytes")),
    "at the end": ("bytes", attrgetter("last_bytes")),
    "grew by": ("bytes", attrgetter("grew_bytes")),
}
_OF_CHANGE: _Columns = {
    "at (UTC)": ("text", lambda change: f"{change['taken_at']:%H:%M:%S}"),
    "after": ("seconds", itemgetter("elapsed_seconds")),
    "process": ("text", itemgetter("name")),
    "pid": ("text", lambda change: str(change["pid"])),
    "event": ("text", itemgetter("event")),
    "kind": ("text", lambda change: _WHAT_WORDS.get(change["what"], change["what"])),
    "times": ("count", itemgetter("times")),
    "change": ("bytes", itemgetter("change_bytes")),
    "holds then": ("bytes", itemgetter("bytes")),
}


def _table(title: str, columns: _Columns, subjects: Iterable[Any], note: str) -> Table:
    units = {heading: unit for heading, (unit, _) in columns.items()}
    return table(title, units, [[value(subject) for _, value in columns.values()] for subject in subjects], note)


def _holders(seen: Watched) -> Table:
    """All of them; containers are named where a process runs in one."""
    listed = seen.lives[:MOST_HOLDERS]
    left_out = f" {len(seen.lives) - MOST_HOLDERS} with less are left out." if len(seen.lives) > MOST_HOLDERS else ""
    contained = any(life.container for life in listed)
    return _table(
        "Holders",
        {heading: column for heading, column in _OF_HOLDER.items() if contained or heading != "container"},
        listed,
        "Pinned and locked memory of each process: cudaHostAlloc, the driver's (write-combined, cuMemCreate on "
        "the host, host pools), and the largest of registered (with the probe), locked and pinned by the kernel's "
        "account (VmPin). At the end 0 B: it ended, or gave all back. Grew by: to its peak, from what it held first, "
        "or from nothing if it came meanwhile." + left_out,
    )


def _devices(seen: Watched) -> Table:
    names = {device.index: device.name for device in seen.run.environment.devices}
    return table(
        "GPUs",
        {
            "GPU": "text",
            "name": "text",
            "memory used": "bytes",
            "of no process": "bytes",
            "page tables": "bytes",
            "received, mean": "bytes/second",
            "received, most": "bytes/second",
            "sent, mean": "bytes/second",
            "sent, most": "bytes/second",
        },
        [
            (
                str(index),
                names.get(index),
                *(_peak(rows, name) for name in _GPU_MEMORY),
                *(value for name in GPU_RATES for value in (_mean(rows, name), _peak(rows, name))),
            )
            for index, rows in seen.devices.items()
        ],
        note="Memory: at most. Page tables: those that the holders' cudaHostAlloc and driver memory implies, and with "
        "the probe their registered memory. Rates: over PCIe, from the GPU's side, as the driver samples them for some "
        "milliseconds each time.",
    )


_GPU_MEMORY = ("memory_used_bytes", "unattributed_bytes", "page_table_bytes")


def _peak(rows: Sequence[Row], name: str) -> float | None:
    return max((value for _, value in points(rows, name)), default=None)


def _mean(rows: Sequence[Row], name: str) -> float | None:
    values = [value for _, value in points(rows, name)]
    return sum(values) / len(values) if values else None


def _events(seen: Watched) -> Table:
    """What happened, the largest changes if it was much, in the order in which it happened."""
    changes = merged(seen.events)
    largest = sorted(changes, key=lambda change: abs(change["change_bytes"]), reverse=True)[:MOST_CHANGES]
    left_out = len(changes) - len(largest)
    return _table(
        "What happened",
        _OF_CHANGE,
        sorted(largest, key=itemgetter("elapsed_seconds")),
        "Several steps of one process in the same direction are one line, from the first of them on."
        + (f" The {MOST_CHANGES} largest; {left_out:,} smaller ones are left out." if left_out else ""),
    )


class TimelineParams(Inputs):
    """How the machine was watched."""

    interval_seconds: float = parameter("Interval", "From one sample to the next.", 1.0, unit="seconds")
    for_seconds: float | None = parameter("Asked for", "How long to watch.", None, unit="seconds")
    pids: tuple[int, ...] = parameter("Only these processes", "By their ids.", ())
    probe: bool = parameter("Registered memory followed", "By uprobes on the driver's library; needs root.", False)


class Timeline:
    """Who held pinned memory over a stretch of time, and what it cost each GPU."""

    name = "timeline"
    title = "Timeline"
    question = "Who held pinned memory while this machine was watched, and what grew?"
    Params = TimelineParams
    Observation = TimelineRow


KIND: Kind = Timeline()
