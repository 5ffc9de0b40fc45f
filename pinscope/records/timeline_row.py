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
    elapsed_seconds: Annotated[float, Field(ge=0)]
    """Since the timeline began, by a clock that goes on while the machine sleeps."""
    taken_at: Moment
    # The host:
    total_bytes: Bytes | None = None
    available_bytes: Bytes | None = None
    cgroup_limit_bytes: Bytes | None = None
    cgroup_headroom_bytes: Bytes | None = None
    pinned_bytes: Bytes | None = None
    explained_bytes: Bytes | None = None
    """The part of the pinned memory that the holders explain."""
    other_pinned_bytes: Bytes | None = None
    """The rest: registered memory, and pins that are not CUDA's."""
    driver_memory_bytes: Bytes | None = None
    """Of the host: what the kernel's accounts leave over, about. Of a holder: what it asked for and has mapped."""
    mlocked_bytes: Bytes | None = None
    holders: Annotated[int, Field(ge=0)] | None = None
    """How many there are."""
    snapshot_cpu_seconds: Rate | None = None
    """Processor time that this snapshot took."""
    watch_cpu_seconds: Rate | None = None
    """Processor time of the recording process since the timeline began."""
    # A holder:
    pid: int | None = None
    name: str | None = None
    user: str | None = None
    container: str | None = None
    started_at: Moment | None = None
    host_alloc_bytes: Bytes | None = None
    registered_bytes: Bytes | None = None
    locked_bytes: Bytes | None = None
    vm_pin_bytes: Bytes | None = None
    gone: bool | None = None
    """It ended, or gave all back."""
    # A GPU:
    device: int | None = None
    memory_total_bytes: Bytes | None = None
    memory_used_bytes: Bytes | None = None
    unattributed_bytes: Bytes | None = None
    page_table_bytes: Bytes | None = None
    rx_bytes_per_second: Rate | None = None
    tx_bytes_per_second: Rate | None = None
    busy_share: Rate | None = None
    link_generation: int | None = None
    """PCIe generation at that moment; ``link_width`` likewise the lanes."""
    link_generation_max: int | None = None
    link_width: int | None = None
    link_width_max: int | None = None
    link_limit_bytes_per_second: Rate | None = None
    """Payload limit of the link at best, one direction."""
    # Something that happened to a holder:
    event: EventKind | None = None
    what: str | None = None
    """``host_alloc``, ``registered``, ``locked`` or ``driver_memory``."""
    change_bytes: int | None = None
    bytes: Bytes | None = None
    """What it holds of it afterwards."""
    # A sample that is missing:
    reason: str | None = None
    # The host and a GPU:
    missing: str | None = None
    """Why figures of this row are null: a line each, ``field: reason``."""

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        """A row has what rows of its kind have: readings rely on it."""
        if lacking := [name for name in NEEDED[self.kind] if getattr(self, name) is None]:
            raise ValueError(f"a row of kind {self.kind} without {lacking[0]}")
        return self
