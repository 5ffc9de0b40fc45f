"""One row of a timeline: a live view that was kept as a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pinscope.records.base import Moment
from pinscope.records.run import Observation
from pinscope.records.timeline import EventKind

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


class TimelineRow(Observation):
    """The host, a holder or a GPU at one moment; something that happened; or why a sample is missing.

    ``repeat`` is the number of the sample, ``warmup`` is always false. A holder has a row where it is first seen,
    where one of its figures changed, and where it is gone; what a row says holds until its next one.
    """

    kind: RowKind
    """``host``, ``holder``, ``device`` (a GPU), ``event`` or ``missed`` (a sample that could not be taken)."""
    elapsed_seconds: Annotated[float, Field(ge=0)]
    """Since the timeline began, by a clock that goes on while the machine sleeps."""
    taken_at: Moment
    """Time of day of the sample."""
    # The host:
    total_bytes: Bytes | None = None
    """Memory of the host."""
    available_bytes: Bytes | None = None
    """What programs can still get without swapping (MemAvailable)."""
    cgroup_limit_bytes: Bytes | None = None
    """The limit of the control group, around the recording process, that leaves the least."""
    cgroup_headroom_bytes: Bytes | None = None
    """What that control group leaves."""
    pinned_bytes: Bytes | None = None
    """Pinned for device access on the whole host."""
    explained_bytes: Bytes | None = None
    """The part of the pinned memory that the holders explain."""
    other_pinned_bytes: Bytes | None = None
    """The rest: registered memory, and pins that are not CUDA's."""
    driver_memory_bytes: Bytes | None = None
    """Of the host: what the kernel's accounts leave over, about. Of a holder: what it asked for and has mapped."""
    mlocked_bytes: Bytes | None = None
    """Locked with mlock, which CUDA does not take for pinned."""
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
    host_alloc_bytes: Bytes | None = None
    """cudaHostAlloc memory that it owns."""
    registered_bytes: Bytes | None = None
    """cudaHostRegister memory, while the probe runs."""
    locked_bytes: Bytes | None = None
    """mlock'ed (VmLck)."""
    vm_pin_bytes: Bytes | None = None
    """Pinned as the kernel accounts it (VmPin)."""
    gone: bool | None = None
    """It ended, or gave all back."""
    # A GPU:
    device: int | None = None
    """Index of the GPU."""
    memory_total_bytes: Bytes | None = None
    """Memory of the GPU."""
    memory_used_bytes: Bytes | None = None
    """Used, without what driver and firmware reserve."""
    unattributed_bytes: Bytes | None = None
    """Used, but charged to no process."""
    page_table_bytes: Bytes | None = None
    """Page tables that the holders' pinned memory implies."""
    rx_bytes_per_second: Rate | None = None
    """Received by the GPU over PCIe."""
    tx_bytes_per_second: Rate | None = None
    """Sent by the GPU over PCIe."""
    busy_share: Rate | None = None
    """Share of the driver's last sample period in which a kernel ran."""
    link_generation: int | None = None
    """PCIe generation at that moment; ``link_width`` likewise the lanes."""
    link_generation_max: int | None = None
    """Best PCIe generation that GPU and slot can do together."""
    link_width: int | None = None
    """PCIe lanes at that moment."""
    link_width_max: int | None = None
    """Most lanes that GPU and slot can use together."""
    link_limit_bytes_per_second: Rate | None = None
    """Payload limit of the link at best, one direction."""
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

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        """A row has what rows of its kind have: readings rely on it."""
        if lacking := [name for name in NEEDED[self.kind] if getattr(self, name) is None]:
            raise ValueError(f"a row of kind {self.kind} without {lacking[0]}")
        return self
