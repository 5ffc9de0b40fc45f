"""What a series of snapshots leaves behind: small samples, and what happened between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from pinscope.records.base import Moment, Record
from pinscope.records.environment import Link
from pinscope.records.figure import with_figures
from pinscope.records.run import Observation
from pinscope.records.snapshot import DeviceFigures, Holder, HostTotals


class HolderSample(Record):
    """One holder at one moment, in short."""

    pid: int
    started_at: datetime | None
    """With the pid it tells a process from a later one with the same number."""
    name: str
    host_alloc_bytes: int | None
    registered_bytes: int | None
    """Known while the probe runs only."""
    locked_bytes: int | None
    driver_memory_bytes: int | None = None


class Sample(Record):
    """One moment of a timeline."""

    taken_at: datetime
    elapsed_seconds: float
    """Since sampling began, by a clock that never goes back."""
    available_bytes: int
    pinned_bytes: int | None
    explained_bytes: int | None
    other_pinned_bytes: int | None
    driver_memory_bytes: int | None = None
    """Of the host: what the kernel's accounts leave over, an estimate."""
    mlocked_bytes: int | None
    holders: tuple[HolderSample, ...]
    """Those with the most bytes, so that a long history stays small; see ``holders_left_out``."""
    holders_left_out: int
    cpu_seconds: float
    """Processor time that the snapshot took."""
    missing: Mapping[str, str] = {}


EventKind = Literal["appeared", "grew", "released", "ended"]


class Event(Record):
    """Something that happened to a holder between two snapshots."""

    at: datetime
    """When it was noticed."""
    kind: EventKind
    """``appeared``, ``grew``, ``released`` or ``ended``."""
    pid: int
    """Process id of the holder."""
    name: str
    """The kernel's short name."""
    what: str
    """Which memory: its figure without ``_bytes``: ``host_alloc``, ``registered``, ``locked`` or ``driver_memory``."""
    change_bytes: int
    """Above 0 when it came or grew, below when it released or ended."""
    total_bytes: int
    """What it holds now; 0 once it has ended."""


RowKind = Literal["host", "holder", "device", "event", "missed"]
Bytes = Annotated[int, Field(ge=0)]
Rate = Annotated[float, Field(ge=0)]

NEEDED: Mapping[RowKind, tuple[str, ...]] = {
    "host": ("total_bytes", "available_bytes", "watch_cpu_seconds"),
    "holder": ("pid", "name", "gone"),
    "device": ("device",),
    "event": ("pid", "name", "event", "what", "change_bytes", "bytes"),
    "missed": ("reason",),
}
"""Kind of row → fields that each of them has."""


@with_figures({"Of the host": HostTotals, "Of a holder": Holder, "Of a GPU": DeviceFigures, "Of its link": Link})
class TimelineRow(Observation):
    """The host, a holder or a GPU at one moment; something that happened; or why a sample is missing.

    ``repeat`` is the number of the sample, ``warmup`` is always false. A holder has a row where it is first seen,
    where one of its figures changed, and where it is gone; what a row says holds until its next one. Its figures are
    those of the live view that a timeline keeps.
    """

    kind: RowKind
    """``host``, ``holder``, ``device`` (a GPU), ``event`` or ``missed`` (a sample that could not be taken)."""
    elapsed_seconds: Annotated[float, Field(ge=0)]
    """Since the timeline began, by a clock that goes on while the machine sleeps."""
    taken_at: Moment
    """Time of day of the sample."""
    # The host:
    holders: Annotated[int, Field(ge=0)] | None = None
    """How many there are."""
    snapshot_cpu_seconds: Rate | None = None
    """Processor time that this snapshot took."""
    watch_cpu_seconds: Rate | None = None
    """Processor time of the recording process since the timeline began."""
    # A holder:
    pid: int | None = None
    """Process id of the holder."""
    name: str | None = None
    """The kernel's short name of the process."""
    user: str | None = None
    """Whose process it is."""
    container: str | None = None
    """Engine and short id."""
    started_at: Moment | None = None
    """When the process started."""
    gone: bool | None = None
    """It ended, or gave all back."""
    # A GPU:
    device: int | None = None
    """Index of the GPU."""
    # Something that happened to a holder:
    event: EventKind | None = None
    """``appeared``, ``grew``, ``released`` or ``ended``."""
    what: str | None = None
    """``host_alloc``, ``registered``, ``locked`` or ``driver_memory``."""
    change_bytes: int | None = None
    """By how much; below 0 where it released or ended."""
    bytes: Bytes | None = None
    """What it holds of it afterwards."""
    # A sample that is missing:
    reason: str | None = None
    """Why a sample is missing."""
    # The host and a GPU:
    missing: str | None = None
    """Why figures of this row are null: a line each, ``field: reason``."""

    def needs(self) -> tuple[str, Iterable[str]]:
        """What rows of its kind have."""
        return f"a row of kind {self.kind}", NEEDED[self.kind]
