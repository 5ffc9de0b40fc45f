"""What a series of snapshots leaves behind: small samples, and what happened between them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Literal

from pinscope.records.base import Record


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
