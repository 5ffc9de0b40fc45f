"""The rows of a timeline, from snapshots as they come."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pinscope.live.changes import Identity, changes
from pinscope.records.base import Record
from pinscope.records.environment import Link
from pinscope.records.figure import Estimated, Figure, Number, figures
from pinscope.records.snapshot import DeviceFigures, Holder, HostTotals, Snapshot
from pinscope.records.timeline import Event, RowKind, TimelineRow

Row = dict[str, Any]
_HELD, _TOTALS, _ON_GPU, _OF_LINK = (
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

    Args:
        pids: keep holders and events of these processes only; none: of all. Totals are always the host's.
    """

    def __init__(self, pids: Collection[int] = ()) -> None:
        self._pids = frozenset(pids)
        self._before: Snapshot | None = None
        self._kept: dict[Identity, tuple[Holder, Mapping[str, Number]]] = {}

    def of(self, snapshot: Snapshot, moment: Moment, watch_cpu_seconds: float) -> list[Row]:
        """The rows of one snapshot: the host first.

        Args:
            snapshot: the next one of the series.
            moment: when it was taken.
            watch_cpu_seconds: processor time of the whole recording so far.

        Raises:
            ValueError: a figure in it is no number.
        """
        make = _Maker(moment, snapshot.taken_at)
        holders = [holder for holder in snapshot.holders if self._is_wanted(holder.pid)]
        rows = [_host(make, snapshot, len(holders), watch_cpu_seconds)]
        kept = dict(self._kept)
        if snapshot.host.explained_bytes is not None:  # else nobody could look at the processes
            rows += _holders(make, holders, kept)
        rows += (_device(make, device) for device in snapshot.devices)
        rows += (_event(make, event) for event in changes(self._before, snapshot) if self._is_wanted(event.pid))
        self._before, self._kept = snapshot, kept  # only now: a snapshot that cannot be kept left no row
        return rows

    def missed(self, reason: str, moment: Moment) -> list[Row]:
        """The row of a sample that could not be taken, with the reason in one line."""
        return [_Maker(moment, datetime.now(UTC)).row("missed", reason=reason)]

    def _is_wanted(self, pid: int) -> bool:
        return not self._pids or pid in self._pids


@dataclass(frozen=True)
class _Maker:
    """Makes the rows of one moment."""

    moment: Moment
    taken_at: datetime

    def row(self, kind: RowKind, **values: Any) -> Row:
        """Only the keys given are kept: a row of one kind has no use for those of the others."""
        made = TimelineRow(
            repeat=self.moment.number,
            warmup=False,
            kind=kind,
            elapsed_seconds=self.moment.elapsed_seconds,
            taken_at=self.taken_at,
            **{name: _storable(value) if isinstance(value, str) else value for name, value in values.items()},
        )
        return made.model_dump(mode="json", exclude_unset=True)


def _host(make: _Maker, snapshot: Snapshot, holders: int, watch_cpu_seconds: float) -> Row:
    host = snapshot.host
    missing = _missing(host, _TOTALS)
    if not snapshot.devices:
        reason = next((gap.reason for gap in snapshot.unreadable if gap.what == "GPUs"), "the driver shows no GPU")
        missing[NO_GPUS] = reason
    return make.row(
        "host",
        **_values(host, _TOTALS),
        holders=holders,
        snapshot_cpu_seconds=snapshot.cpu_seconds,
        watch_cpu_seconds=watch_cpu_seconds,
        missing=_reasons(missing),
    )


def _holders(
    make: _Maker, holders: Collection[Holder], kept: dict[Identity, tuple[Holder, Mapping[str, Number]]]
) -> Iterator[Row]:
    """Rows of those that are new or changed, and of those that are gone; ``kept`` is brought up to date."""
    present = {(holder.pid, holder.started_at): holder for holder in holders}
    for key in [key for key in kept if key not in present]:
        yield _holder(make, kept.pop(key)[0], _NOTHING, gone=True)
    for key, holder in present.items():
        values = _values(holder, _HELD)
        if key not in kept or kept[key][1] != values:
            kept[key] = (holder, values)
            yield _holder(make, holder, values, gone=False)


def _holder(make: _Maker, holder: Holder, values: Mapping[str, Number], *, gone: bool) -> Row:
    return make.row(
        "holder",
        pid=holder.pid,
        name=holder.name,
        user=holder.user,
        container=holder.container,
        started_at=holder.started_at,
        **values,
        gone=gone,
    )


def _device(make: _Maker, device: DeviceFigures) -> Row:
    missing = _missing(device, _ON_GPU)
    if "link" in device.missing:
        missing["link"] = device.missing["link"]
    values = _values(device, _ON_GPU) | _values(device.link, _OF_LINK)
    return make.row("device", device=device.index, **values, missing=_reasons(missing))


def _event(make: _Maker, event: Event) -> Row:
    return make.row(
        "event",
        pid=event.pid,
        name=event.name,
        event=event.kind,
        what=event.what,
        change_bytes=event.change_bytes,
        bytes=event.total_bytes,
    )


def _values(record: Record | None, kept: Iterable[Figure]) -> dict[str, Number]:
    """The row's fields for these figures."""
    return {figure.column: getattr(record, figure.field, None) for figure in kept}


def _missing(record: Estimated, kept: Iterable[Figure]) -> dict[str, str]:
    return {figure.column: record.missing[figure.field] for figure in kept if figure.field in record.missing}


def _reasons(missing: Mapping[str, str]) -> str | None:
    return "\n".join(f"{name}: {' '.join(reason.split())}" for name, reason in missing.items()) or None


def _storable(text: str) -> str:
    """Text that UTF-8 can carry: a process may call itself what it likes."""
    return text.encode("utf-8", "replace").decode()
