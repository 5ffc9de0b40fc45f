"""What a trace keeps of the calls of libraries that move or pin data of the host."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pinscope.records.base import Record

Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0)]


class HostCallFields(Record):
    """Fields of a trace's rows of kind ``host_call``, and of sites what is known by these calls."""

    host_seconds: Seconds | None = None
    """How long they were on the CPU beside the driver's calls within them: converting, gathering, copying."""
    processor_seconds: Seconds | None = None
    """Time of the processor that their threads used, also in the driver; those that a library starts are not in it."""
    minor_faults: Count | None = None
    """Page faults of these threads that read nothing from a disk."""
    major_faults: Count | None = None
    """Those that read from a disk."""
    converted_bytes: Count | None = None
    """Of data whose type was made another."""
    gathered_bytes: Count | None = None
    """Of data that was made contiguous first."""
    staged_bytes: Count | None = None
    """Of data that was copied in the host's memory."""
    newly_pinned_count: Count | None = None
    """How often pinned memory was taken from the driver; else what the library had kept was used again."""
    newly_pinned_bytes: Count | None = None
    """Of it."""
    pins_batches: bool | None = None
    """Of a DataLoader: whether it pins."""
    # These, and copies of a line:
    pinned_source_count: Count | None = None
    """Of how many the source is pinned, though the driver may get other memory."""
    received_count: Count | None = None
    """Of how many large copies the source was sent by a DataLoader's worker."""
