"""Series of snapshots: what stays of each, what happened between two, and who grows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from pinscope.analysis.held import held_by, held_bytes
from pinscope.analysis.rules.growth import steady_growth
from pinscope.records.figure import figures
from pinscope.records.snapshot import Holder, HostTotals, Snapshot
from pinscope.records.timeline import Event, EventKind, HolderSample, Sample

MOST_HOLDERS = 16
"""Holders kept of each sample."""

_KINDS = tuple(figure.field.removesuffix("_bytes") for figure in figures(Holder) if figure.event)
_TOTALS = tuple(name for name in HostTotals.model_fields if name in Sample.model_fields and name != "missing")
# One set of field names for all records of a kind: a set of its own in each would be more than half of a long history.
_SAMPLE, _HOLDER = set(Sample.model_fields), set(HolderSample.model_fields)
Identity = tuple[int, datetime | None]
"""Pid and start: tells a process from a later one with the same number."""


def changes(before: Snapshot | None, after: Snapshot) -> tuple[Event, ...]:
    """What happened to the holders between two snapshots, the largest change first.

    What is not known in one of them is no change; neither is what was there in the very first one.
    """
    if before is None or before.host.explained_bytes is None or after.host.explained_bytes is None:
        return ()  # nobody could look at the processes
    past = {_identity(one): one for one in before.holders}
    present = {_identity(one): one for one in after.holders}
    events = [
        *(event for key, one in past.items() if key not in present for event in _gone(one, after)),
        *(event for key, one in present.items() for event in _moved(past.get(key), one, after)),
    ]
    return tuple(sorted(events, key=lambda event: abs(event.change_bytes), reverse=True))


def sample_of(snapshot: Snapshot, elapsed_seconds: float, before: Sample | None = None) -> Sample:
    """The short form of a snapshot: totals, the holders with the most bytes.

    Args:
        snapshot: the whole.
        elapsed_seconds: since sampling began.
        before: the sample before; what did not change is shared with it, so that a long history stays small.
    """
    host = snapshot.host
    ranked = sorted(filter(held_by, snapshot.holders), key=held_by, reverse=True)
    known = {(one.pid, one.started_at): one for one in before.holders} if before is not None else {}
    missing = {name: reason for name, reason in host.missing.items() if name in _TOTALS}
    return Sample.model_construct(
        _SAMPLE,
        taken_at=snapshot.taken_at,
        elapsed_seconds=elapsed_seconds,
        **{name: getattr(host, name) for name in _TOTALS},
        holders=tuple(_holder(one, known.get(_identity(one))) for one in ranked[:MOST_HOLDERS]),
        holders_left_out=max(0, len(ranked) - MOST_HOLDERS),
        cpu_seconds=snapshot.cpu_seconds,
        missing=before.missing if before is not None and before.missing == missing else missing,
    )


def growing(samples: Sequence[Sample]) -> frozenset[int]:
    """Pids of those whose pinned or whose locked memory grew steadily: see :func:`steady_growth`.

    A sample that left a process out tells nothing of it.
    """
    if not samples:
        return frozenset()
    series: dict[Identity, tuple[list[tuple[float, int]], ...]] = {
        (one.pid, one.started_at): ([], []) for one in samples[-1].holders
    }
    last: dict[Identity, HolderSample] = {}
    for sample in samples:
        for one in sample.holders:
            key = (one.pid, one.started_at)
            if key not in series or last.get(key) is one:  # samples share what did not change
                continue
            last[key] = one
            pinned = held_bytes(one.host_alloc_bytes, one.registered_bytes, None, None, one.driver_memory_bytes)
            for amounts, amount in zip(series[key], (pinned, one.locked_bytes), strict=True):
                if amount is not None:
                    amounts.append((sample.elapsed_seconds, amount))
    end = samples[-1].elapsed_seconds
    return frozenset(key[0] for key, both in series.items() if any(steady_growth(amounts, end) for amounts in both))


def _identity(holder: Holder) -> Identity:
    return holder.pid, holder.started_at


def _amounts(holder: Holder) -> Iterable[tuple[str, int | None]]:
    return ((what, getattr(holder, f"{what}_bytes")) for what in _KINDS)


def _gone(holder: Holder, after: Snapshot) -> Iterator[Event]:
    """It holds nothing any more. A process with CUDA is shown until its end; others end or only give back."""
    kind: EventKind = "ended" if holder.cuda else "released"
    for what, amount in _amounts(holder):
        if amount:
            yield _event(after, kind, holder, what, change=-amount, total=0)


def _moved(before: Holder | None, now: Holder, after: Snapshot) -> Iterator[Event]:
    past = dict(_amounts(before)) if before is not None else dict.fromkeys(_KINDS, 0)
    for what, amount in _amounts(now):
        was = past[what]
        if amount is None or was is None or amount == was:
            continue
        kind: EventKind = "appeared" if before is None else "grew" if amount > was else "released"
        yield _event(after, kind, now, what, change=amount - was, total=amount)


def _event(after: Snapshot, kind: EventKind, holder: Holder, what: str, *, change: int, total: int) -> Event:
    return Event(
        at=after.taken_at,
        kind=kind,
        pid=holder.pid,
        name=holder.name,
        what=what,
        change_bytes=change,
        total_bytes=total,
    )


def _holder(holder: Holder, before: HolderSample | None) -> HolderSample:
    sample = HolderSample.model_construct(_HOLDER, **{name: getattr(holder, name) for name in _HOLDER})
    return before if before == sample else sample
