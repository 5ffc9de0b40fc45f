"""What a run will take, known before it touches anything."""

from __future__ import annotations

from pinscope.records.base import Record


class Budget(Record):
    """Peak needs of one run, in bytes and seconds."""

    pinned_bytes: int
    """Host memory that is page-locked at once (locked, on the host lab)."""
    pageable_bytes: int
    """Ordinary host memory at once."""
    device_bytes: int
    """GPU memory at once, per GPU, without the CUDA context (ordinary host memory, on the host lab)."""
    seconds: float
    """Rough length of the run."""
    hugetlb_bytes: int = 0
    """Of the pinned bytes, what must stand on hugetlb pages, which root reserves beforehand."""
