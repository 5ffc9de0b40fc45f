"""The rows of a timeline, from snapshots as they come."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pinscope.live.changes import Identity, changes
from pinscope.records.snapshot import DeviceFigures, Holder, Snapshot
from pinscope.records.timeline import Event
from pinscope.records.timeline_row import RowKind, TimelineRow

Row = dict[str, Any]
_FIGURES = ("host_alloc_bytes", "registered_bytes", "locked_bytes", "vm_pin_bytes", "driver_memory_bytes")
"""What a process holds, by kind."""
_TOTALS = (
    "total_bytes", "available_bytes", "cgroup_limit_bytes", "cgroup_headroom_bytes", "pinned_bytes", "explained_bytes",
    "other_pinned_bytes", "driver_memory_bytes", "mlocked_bytes",
)  # fmt: skip
_ON_GPU = (
    "memory_total_bytes", "memory_used_bytes", "unattributed_bytes", "page_table_bytes", "rx_bytes_per_second",
    "tx_bytes_per_second", "busy_share",
)  # fmt: skip
_LINK = {
    "link_generation": "generation_now",
    "link_generation_max": "generation_max",
    "link_width": "width_now",
    "link_width_max": "width_max",
    "link_limit_bytes_per_second": "limit_bytes_per_second",
}
"""Figure of a row → field of a link."""
NO_GPUS = "devices"
"""Under this name a host's row says why there is none of a GPU."""
_NOTHING = dict.fromkeys(_FIGURES, 0)


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
        self._told: dict[Identity, tuple[Holder, Mapping[str, int | None]]] = {}

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
        holders = [one for one in snapshot.holders if self._is_wanted(one.pid)]
        rows = [_host(make, snapshot, len(holders), watch_cpu_seconds)]
        told = dict(self._told)
        if snapshot.host.explained_bytes is not None:  # else nobody could look at the processes
            rows += _holders(make, holders, told)
        rows += (_device(make, one) for one in snapshot.devices)
        rows += (_event(make, one) for one in changes(self._before, snapshot) if self._is_wanted(one.pid))
        self._before, self._told = snapshot, told  # only now: of a snapshot that cannot be kept nothing was told
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
    missing = {name: host.missing[name] for name in _TOTALS if name in host.missing}
    if not snapshot.devices:
        reason = next((one.reason for one in snapshot.unreadable if one.what == "GPUs"), "the driver shows no GPU")
        missing[NO_GPUS] = reason
    return make.row(
        "host",
        **{name: getattr(host, name) for name in _TOTALS},
        holders=holders,
        snapshot_cpu_seconds=snapshot.cpu_seconds,
        watch_cpu_seconds=watch_cpu_seconds,
        missing=_reasons(missing),
    )


def _holders(
    make: _Maker, holders: Collection[Holder], told: dict[Identity, tuple[Holder, Mapping[str, int | None]]]
) -> Iterator[Row]:
    """Rows of those that are new or changed, and of those that are gone; ``told`` is brought up to date."""
    present = {(one.pid, one.started_at): one for one in holders}
    for key in [key for key in told if key not in present]:
        yield _holder(make, told.pop(key)[0], _NOTHING, gone=True)
    for key, one in present.items():
        figures = {name: getattr(one, name) for name in _FIGURES}
        if key not in told or told[key][1] != figures:
            told[key] = (one, figures)
            yield _holder(make, one, figures, gone=False)


def _holder(make: _Maker, one: Holder, figures: Mapping[str, int | None], *, gone: bool) -> Row:
    return make.row(
        "holder",
        pid=one.pid,
        name=one.name,
        user=one.user,
        container=one.container,
        started_at=one.started_at,
        **figures,
        gone=gone,
    )


def _device(make: _Maker, one: DeviceFigures) -> Row:
    link = {name: getattr(one.link, field) if one.link else None for name, field in _LINK.items()}
    missing = {name: one.missing[name] for name in (*_ON_GPU, "link") if name in one.missing}
    figures = {name: getattr(one, name) for name in _ON_GPU}
    return make.row("device", device=one.index, **figures, **link, missing=_reasons(missing))


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


def _reasons(missing: Mapping[str, str]) -> str | None:
    return "\n".join(f"{name}: {' '.join(reason.split())}" for name, reason in missing.items()) or None


def _storable(text: str) -> str:
    """Text that UTF-8 can carry: a process may call itself what it likes."""
    return text.encode("utf-8", "replace").decode()
