"""What a kept live view tells: headline and tables, from its rows alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pinscope.analysis.rows import Row
from pinscope.experiments.timeline.arithmetic import GPU_RATES, Watched, extreme, merged, points, reason_of, watched
from pinscope.experiments.timeline.findings import timeline_findings, when
from pinscope.experiments.timeline.findings_growth import who
from pinscope.experiments.timeline.verdict import timeline_verdict
from pinscope.records.figure import figures
from pinscope.records.finding import Quantity, Reading, Table, quantity, table
from pinscope.records.run import Run
from pinscope.records.snapshot import Holder

MOST_HOLDERS = 100
MOST_CHANGES = 100

_WHAT_WORDS = {figure.field.removesuffix("_bytes"): figure.short or "" for figure in figures(Holder)}


def read_timeline(run: Run, rows: Sequence[Row]) -> Reading:
    """Headline, tables and findings of a timeline; of one without samples only why there are none."""
    seen = watched(run, rows)
    if not seen.host:
        return Reading(headline=(), tables=(), findings=timeline_findings(seen))
    return Reading(
        verdict=timeline_verdict(seen),
        headline=tuple(_headline(seen)),
        tables=tuple(table for table in (_holders(seen), _devices(run, seen), _events(seen)) if table.rows),
        findings=timeline_findings(seen),
    )


# Headline


def _headline(seen: Watched) -> Iterator[Quantity]:
    pinned = points(seen.host, "pinned_bytes")
    why = None if pinned else _why(seen, "pinned_bytes")
    yield _moment("Most pinned", pinned, max, why)
    yield quantity("Pinned at the end", pinned[-1][1] if pinned else None, "bytes", reason=why)
    yield _grew_most(seen)
    yield quantity("Pinned at the beginning", pinned[0][1] if pinned else None, "bytes", reason=why)
    driver = points(seen.host, "driver_memory_bytes")
    if driver:  # recordings of older versions have none
        yield _moment("Most driver memory on the host (about)", driver, max, None)
    yield _moment("Least memory available", points(seen.host, "available_bytes"), min, None)
    left = points(seen.host, "cgroup_headroom_bytes")
    yield _moment(
        "Least memory left in the control group", left, min, None if left else _why(seen, "cgroup_headroom_bytes")
    )
    yield _most_unattributed(seen)
    yield _cost(seen)


def _moment(name: str, series: Sequence[tuple[float, float]], pick: Callable[..., Any], why: str | None) -> Quantity:
    """The least or the largest value; when that was, unless it was always the same."""
    found = extreme(series, pick)
    if found is None:
        return quantity(name, None, "bytes", reason=why)
    varies = any(value != found[1] for _, value in series)
    return quantity(f"{name}, {when(found[0])}" if varies else name, found[1], "bytes")


def _why(seen: Watched, name: str) -> str:
    return reason_of(seen.host[-1], name) or "it was not reported"


def _grew_most(seen: Watched) -> Quantity:
    grown = max(seen.lives, key=lambda life: life.grew_bytes or 0, default=None)
    if grown is None or not grown.grew_bytes:
        reason = "no holder grew" if seen.lives else "no process held any"
        return quantity("Grew most", None, "bytes", reason=reason)
    how = "" if any(amount for _, amount in grown.pinned) else ", with mlock"
    return quantity(f"Grew most{how}: {who(grown)}", grown.grew_bytes, "bytes")


_UNCHARGED = "Most GPU memory charged to no process"


def _most_unattributed(seen: Watched) -> Quantity:
    most: tuple[int, float, float] | None = None
    for index, rows in seen.devices.items():
        found = extreme(points(rows, "unattributed_bytes"), max)
        if found is not None and (most is None or found[1] > most[2]):
            most = (index, *found)
    if most is not None:
        index, at, value = most
        name = f"{_UNCHARGED}, GPU {index}, {when(at)}"
        return quantity(name, value, "bytes")
    last = next((rows[-1] for rows in seen.devices.values()), None)
    reason = _why(seen, "devices") if last is None else reason_of(last, "unattributed_bytes") or "it was not reported"
    return quantity(_UNCHARGED, None, "bytes", reason=reason)


def _cost(seen: Watched) -> Quantity:
    """Of one processor core, snapshots, the driver's answers and storing together."""
    last = seen.host[-1]
    name, seconds = "Processor time of PinScope, of one core", last["elapsed_seconds"]
    if not seconds:
        return quantity(name, None, "share", reason="there is one sample only")
    return quantity(name, last["watch_cpu_seconds"] / seconds, "share")


# Tables


def _holders(seen: Watched) -> Table:
    """All of them; containers are named where a process runs in one."""
    shown = seen.lives[:MOST_HOLDERS]
    left_out = f" {len(seen.lives) - MOST_HOLDERS} with less are left out." if len(seen.lives) > MOST_HOLDERS else ""
    contained = any(life.container for life in shown)
    return table(
        "Holders",
        {
            "process": "text",
            "pid": "text",
            "user": "text",
            **({"container": "text"} if contained else {}),
            "first seen": "seconds",
            "last seen": "seconds",
            "held first": "bytes",
            "at its peak": "bytes",
            "at the end": "bytes",
            "grew by": "bytes",
        },
        [
            (
                life.name,
                str(life.pid),
                life.user,
                *((life.container or "–",) if contained else ()),
                life.first_seconds,
                life.last_seconds,
                life.first_bytes,
                life.peak_bytes,
                life.last_bytes,
                life.grew_bytes,
            )
            for life in shown
        ],
        note="Pinned and locked memory of each process: cudaHostAlloc, the driver's (write-combined, cuMemCreate on "
        "the host, host pools), and the largest of registered (with the probe), locked and pinned by the kernel's "
        "account (VmPin). At the end 0 B: it ended, or gave all back. Grew by: to its peak, from what it held first, "
        "or from nothing if it came meanwhile." + left_out,
    )


def _devices(run: Run, seen: Watched) -> Table:
    names = {device.index: device.name for device in run.environment.devices}
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
    largest = sorted(changes, key=lambda change: abs(change.change_bytes), reverse=True)[:MOST_CHANGES]
    left_out = len(changes) - len(largest)
    return table(
        "What happened",
        {
            "at (UTC)": "text",
            "after": "seconds",
            "process": "text",
            "pid": "text",
            "event": "text",
            "kind": "text",
            "times": "count",
            "change": "bytes",
            "holds then": "bytes",
        },
        [
            (
                f"{change.begun:%H:%M:%S}",
                change.seconds,
                change.name,
                str(change.pid),
                change.event,
                _WHAT_WORDS.get(change.what, change.what),
                change.times,
                change.change_bytes,
                change.bytes,
            )
            for change in sorted(largest, key=lambda change: change.seconds)
        ],
        note="Several steps of one process in the same direction are one line, from the first of them on."
        + (f" The {MOST_CHANGES} largest; {left_out:,} smaller ones are left out." if left_out else ""),
    )
