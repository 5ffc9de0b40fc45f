"""What a series of snapshots leaves: events, samples, who grows, curves, and the rows of a timeline."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any

from pinscope.analysis.rules import held_by, held_bytes, steady_growth
from pinscope.records.base import Record
from pinscope.records.environment import Link
from pinscope.records.figure import Estimated, Figure, Number, figures
from pinscope.records.snapshot import DeviceFigures, Holder, HostTotals, Snapshot
from pinscope.records.timeline import Event, EventKind, HolderSample, RowKind, Sample, TimelineRow
from pinscope.text import encodable

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
    past = {identity(holder): holder for holder in before.holders}
    present = {identity(holder): holder for holder in after.holders}
    events: list[Event] = []
    for key, holder in ({key: past[key] for key in past if key not in present} | present).items():
        events += _events(holder, past.get(key), present.get(key), after.taken_at)
    return tuple(sorted(events, key=lambda event: abs(event.change_bytes), reverse=True))


def sample_of(snapshot: Snapshot, elapsed_seconds: float, before: Sample | None = None) -> Sample:
    """The short form of a snapshot, so long after sampling began: totals, the holders with the most bytes.

    What did not change is shared with the sample ``before``, so that a long history stays small.
    """
    host = snapshot.host
    ranked = sorted(filter(held_by, snapshot.holders), key=held_by, reverse=True)
    known = {identity(holder): holder for holder in before.holders} if before is not None else {}
    missing = {name: reason for name, reason in host.missing.items() if name in _TOTALS}
    return Sample.model_construct(
        _SAMPLE,
        taken_at=snapshot.taken_at,
        elapsed_seconds=elapsed_seconds,
        **{name: getattr(host, name) for name in _TOTALS},
        holders=tuple(_holder_sample(holder, known.get(identity(holder))) for holder in ranked[:MOST_HOLDERS]),
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
        identity(holder): ([], []) for holder in samples[-1].holders
    }
    last: dict[Identity, HolderSample] = {}
    for sample in samples:
        for holder in sample.holders:
            key = identity(holder)
            if key not in series or last.get(key) is holder:  # samples share what did not change
                continue
            last[key] = holder
            pinned = held_bytes(
                holder.host_alloc_bytes, holder.registered_bytes, None, None, holder.driver_memory_bytes
            )
            for amounts, amount in zip(series[key], (pinned, holder.locked_bytes), strict=True):
                if amount is not None:
                    amounts.append((sample.elapsed_seconds, amount))
    end = samples[-1].elapsed_seconds
    return frozenset(key[0] for key, both in series.items() if any(steady_growth(amounts, end) for amounts in both))


def identity(holder: Holder | HolderSample) -> Identity:
    return holder.pid, holder.started_at


def _events(holder: Holder, before: Holder | None, now: Holder | None, at: datetime) -> Iterator[Event]:
    """What changed of one holder. One with CUDA is shown until its end; others end or only give back."""
    for what in _KINDS:
        was, amount = (0 if shown is None else getattr(shown, f"{what}_bytes") for shown in (before, now))
        if was is None or amount is None or was == amount:
            continue
        kind: EventKind = "grew" if amount > was else "released"
        if now is None and holder.cuda:
            kind = "ended"
        elif before is None:
            kind = "appeared"
        yield Event(
            at=at, kind=kind, pid=holder.pid, name=holder.name, what=what, change_bytes=amount - was, total_bytes=amount
        )


def _holder_sample(holder: Holder, before: HolderSample | None) -> HolderSample:
    sample = HolderSample.model_construct(_HOLDER, **{name: getattr(holder, name) for name in _HOLDER})
    return before if before == sample else sample


MOST_POINTS = 600
"""More curves are too close to distinguish on a screen."""
_LEAST_STEP_SECONDS = 1 / 64
_ELAPSED = attrgetter("elapsed_seconds")

_LABELS = {figure.field: figure.label for figure in figures(HostTotals)}
BANDS: Mapping[str, str] = {
    _LABELS["explained_bytes"]: "pinned",
    _LABELS["other_pinned_bytes"]: "registered",
    "Pinned, of unknown kind": "reference",
}
"""Parts of the pinned total, stacked in the live chart, with the names of their colours."""
SERIES: Mapping[str, str] = {**BANDS, _LABELS["mlocked_bytes"]: "locked", _LABELS["driver_memory_bytes"]: "driver"}
"""All that the live chart draws; the last two are no part of the pinned total."""
Curve = tuple[float | None, ...]
"""Amounts, oldest first; ``None`` where not known."""


def moments(
    samples: Sequence[Sample], window_seconds: float, interval_seconds: float, after: float | None = None
) -> list[list[int | None]]:
    """What the live chart draws of the last ``window_seconds``.

    Args:
        samples: oldest first.
        window_seconds: how far back from the last sample.
        interval_seconds: from one sample to the next.
        after: only those later than this, in seconds since the sampling began, and all of them. Without it, of more
            moments than a screen can show those with the most pinned and locked memory.

    Returns:
        Of each its time in milliseconds since 1970 and the bytes of each of :data:`SERIES`, ``None`` if not known.
    """
    chosen = within(samples, window_seconds)
    if after is not None:
        chosen = chosen[bisect_right(chosen, after, key=_ELAPSED) :]
    else:  # stretches of time do not move as time goes on
        seconds = max(window_seconds / MOST_POINTS, interval_seconds)
        stretches = groupby(chosen, lambda sample: sample.elapsed_seconds // seconds)
        chosen = [max(stretch, key=_weight) for _, stretch in stretches]
    return [[round(sample.taken_at.timestamp() * 1000), *_values(sample)] for sample in chosen]


def within(samples: Sequence[Sample], window_seconds: float) -> Sequence[Sample]:
    """Those of the last ``window_seconds``, oldest first."""
    if not samples:
        return ()
    return samples[bisect_left(samples, samples[-1].elapsed_seconds - window_seconds, key=_ELAPSED) :]


def _weight(sample: Sample) -> int:
    return (sample.pinned_bytes or 0) + (sample.mlocked_bytes or 0)


def _values(sample: Sample) -> tuple[int | None, ...]:
    """In the order of :data:`SERIES`. Bands are the exact total wherever that is known, split where it can be."""
    if sample.pinned_bytes is not None and sample.other_pinned_bytes is None:
        return None, None, sample.pinned_bytes, sample.mlocked_bytes, sample.driver_memory_bytes
    return sample.explained_bytes, sample.other_pinned_bytes, None, sample.mlocked_bytes, sample.driver_memory_bytes


def holder_trends(samples: Sequence[Sample], steps: int) -> Mapping[Identity, Curve]:
    """What each process of the last sample held, at most, in each of so many steps of one length, or one more.

    Only those with the most bytes are in a sample.
    """
    parts = _steps(samples, steps)
    curves: dict[Identity, list[float | None]] = {
        identity(holder): [None] * len(parts) for holder in (samples[-1].holders if samples else ())
    }
    for number, part in enumerate(parts):
        for sample in part:
            for holder in sample.holders:
                curve = curves.get(identity(holder))
                if curve is not None:
                    curve[number] = max(curve[number] or 0.0, float(held_by(holder)))
    return {key: tuple(curve) for key, curve in curves.items()}


def _steps(samples: Sequence[Sample], steps: int) -> list[list[Sample]]:
    """Steps do not move as time goes on, so that a curve changes seldom."""
    if not samples:
        return []
    span = samples[-1].elapsed_seconds - samples[0].elapsed_seconds
    step_seconds = 2 ** math.ceil(math.log2(max(span / steps, _LEAST_STEP_SECONDS)))
    return [list(step) for _, step in groupby(samples, lambda sample: sample.elapsed_seconds // step_seconds)]


NewRow = dict[str, Any]
"""A row of a timeline, to be stored."""
_HELD, _TOTAL_FIGURES, _ON_GPU, _OF_LINK = (
    tuple(figure for figure in figures(record) if figure.timeline)
    for record in (Holder, HostTotals, DeviceFigures, Link)
)
NO_GPUS = "devices"
"""Under this name a host's row says why there is none of a GPU."""
_NOTHING: Mapping[str, Number] = {figure.column: 0 for figure in _HELD}


@dataclass(frozen=True)
class Moment:
    """When a sample was taken: its number, and seconds since the timeline began."""

    number: int
    elapsed_seconds: float


class TimelineRows:
    """Makes rows of a series of snapshots. What a holder's last row said holds until its next one.

    With ``pids``, holders and events of these processes only are kept. Totals are always the host's.
    """

    def __init__(self, pids: Collection[int] = ()) -> None:
        self._pids = frozenset(pids)
        self._before: Snapshot | None = None
        self._kept: dict[Identity, tuple[Holder, Mapping[str, Number]]] = {}

    def of(self, snapshot: Snapshot, moment: Moment, watch_cpu_seconds: float) -> list[NewRow]:
        """The rows of the next snapshot, the host first; ``watch_cpu_seconds`` of the whole recording so far.

        Raises:
            ValueError: a figure in it is no number.
        """
        make = partial(_row, moment, snapshot.taken_at)
        holders = [holder for holder in snapshot.holders if self._is_wanted(holder.pid)]
        rows = [_host_row(make, snapshot, len(holders), watch_cpu_seconds)]
        kept = dict(self._kept)
        if snapshot.host.explained_bytes is not None:  # else nobody could look at the processes
            rows += _holder_rows(make, holders, kept)
        rows += (_device_row(make, device) for device in snapshot.devices)
        rows += (_event_row(make, event) for event in changes(self._before, snapshot) if self._is_wanted(event.pid))
        self._before, self._kept = snapshot, kept  # only now: a snapshot that cannot be kept left no row
        return rows

    def missed(self, reason: str, moment: Moment) -> list[NewRow]:
        """The row of a sample that could not be taken, with the reason in one line."""
        return [_row(moment, datetime.now(UTC), "missed", reason=reason)]

    def _is_wanted(self, pid: int) -> bool:
        return not self._pids or pid in self._pids


def _row(moment: Moment, taken_at: datetime, kind: RowKind, **values: Any) -> NewRow:
    """Only the keys given are kept: a row of one kind has no use for those of the others."""
    made = TimelineRow(
        repeat=moment.number,
        warmup=False,
        kind=kind,
        elapsed_seconds=moment.elapsed_seconds,
        taken_at=taken_at,
        **{name: encodable(value) if isinstance(value, str) else value for name, value in values.items()},
    )
    return made.model_dump(mode="json", exclude_unset=True)


_Make = Callable[..., NewRow]
"""Makes the rows of one moment: :func:`_row`."""


def _host_row(make: _Make, snapshot: Snapshot, holders: int, watch_cpu_seconds: float) -> NewRow:
    host = snapshot.host
    missing = _row_missing(host, _TOTAL_FIGURES)
    if not snapshot.devices:
        reason = next((gap.reason for gap in snapshot.unreadable if gap.what == "GPUs"), "the driver shows no GPU")
        missing[NO_GPUS] = reason
    return make(
        "host",
        **_row_values(host, _TOTAL_FIGURES),
        holders=holders,
        snapshot_cpu_seconds=snapshot.cpu_seconds,
        watch_cpu_seconds=watch_cpu_seconds,
        missing=_reasons(missing),
    )


def _holder_rows(
    make: _Make, holders: Collection[Holder], kept: dict[Identity, tuple[Holder, Mapping[str, Number]]]
) -> Iterator[NewRow]:
    """Rows of those that are new or changed, and of those that are gone; ``kept`` is brought up to date."""
    present = {(holder.pid, holder.started_at): holder for holder in holders}
    for key in [key for key in kept if key not in present]:
        yield _holder_row(make, kept.pop(key)[0], _NOTHING, gone=True)
    for key, holder in present.items():
        values = _row_values(holder, _HELD)
        if key not in kept or kept[key][1] != values:
            kept[key] = (holder, values)
            yield _holder_row(make, holder, values, gone=False)


def _holder_row(make: _Make, holder: Holder, values: Mapping[str, Number], *, gone: bool) -> NewRow:
    who = {name: getattr(holder, name) for name in ("pid", "name", "user", "container", "started_at")}
    return make("holder", **who, **values, gone=gone)


def _device_row(make: _Make, device: DeviceFigures) -> NewRow:
    missing = _row_missing(device, _ON_GPU)
    if "link" in device.missing:
        missing["link"] = device.missing["link"]
    values = _row_values(device, _ON_GPU) | _row_values(device.link, _OF_LINK)
    return make("device", device=device.index, **values, missing=_reasons(missing))


def _event_row(make: _Make, event: Event) -> NewRow:
    return make(
        "event",
        pid=event.pid,
        name=event.name,
        event=event.kind,
        what=event.what,
        change_bytes=event.change_bytes,
        bytes=event.total_bytes,
    )


def _row_values(record: Record | None, kept: Iterable[Figure]) -> dict[str, Number]:
    """The row's fields for these figures."""
    return {figure.column: getattr(record, figure.field, None) for figure in kept}


def _row_missing(record: Estimated, kept: Iterable[Figure]) -> dict[str, str]:
    return {figure.column: record.missing[figure.field] for figure in kept if figure.field in record.missing}


def _reasons(missing: Mapping[str, str]) -> str | None:
    return "\n".join(f"{name}: {' '.join(reason.split())}" for name, reason in missing.items()) or None
