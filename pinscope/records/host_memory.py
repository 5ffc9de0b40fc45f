"""What a trace keeps of a program's host memory: what pageable copies use, and managed memory that moved."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pinscope.records.base import Record

HostMapping = Literal["anonymous", "file", "shared"]
_Count = Annotated[int, Field(ge=0)]
_Seconds = Annotated[float, Field(ge=0)]
_Share = Annotated[float, Field(ge=0, le=1)]


class HostMemoryFields(Record):
    """Fields of a trace's rows of kind ``site`` and ``migration``, and of the program."""

    # The program:
    managed_bytes: _Count | None = None
    """Managed memory that was allocated."""
    migrations_recorded: bool | None = None
    """Whether it was recorded how pages of managed memory moved between host and GPU; not there where none was seen."""
    # Copies:
    mapping: HostMapping | None = None
    """What pageable memory large copies use: ``anonymous`` (the program's own), ``file`` (a mapped one) or ``shared``.
    This and what follows was looked up at the first copy and the fourth, before they began."""
    mapped_file: str | None = None
    """Which."""
    untouched_share: _Share | None = None
    """Of its pages, how many the program had no memory for yet: each is a page fault."""
    uncached_share: _Share | None = None
    """Of a file's pages, how many were not in memory: the disk is read. Not known where another user owns the file."""
    huge_share: _Share | None = None
    """Of its bytes, how many lay in huge pages. Not known before Linux 6.7."""
    # Managed memory:
    to_gpu_bytes: _Count | None = None
    """Pages that moved to a GPU."""
    to_host_bytes: _Count | None = None
    """Pages that moved to the host."""
    prefetched_bytes: _Count | None = None
    """Of both, those for which the program had asked, as by cudaMemPrefetchAsync."""
    gpu_fault_groups: _Count | None = None
    """Groups of page faults of GPUs."""
    cpu_faults: _Count | None = None
    """Page faults of CPUs."""
    kernel_seconds: _Seconds | None = None
    """How long the kernels ran that waited for pages, together with what they computed."""
    cpu_seconds: _Seconds | None = None
    """How long the CPU stood at the line while its pages came."""
