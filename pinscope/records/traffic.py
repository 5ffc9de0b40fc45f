"""What a trace keeps of libraries between a line and its copies, and of copies that need not be."""

from __future__ import annotations

from typing import Literal

from pinscope.records.base import Count, Record

NeedlessKind = Literal["sent_again", "brought_back"]
"""Kinds of rows of copies that need not be: to the GPU, of what had been sent before; to the host, of what a copy had
brought to the same memory of the GPU."""


class TrafficFields(Record):
    """Fields of a trace's rows."""

    # Of a line of the program:
    library_file: str | None = None
    """Of the library that the line called and that made the call, or had PyTorch, CuPy or JAX make it."""
    library_line: Count | None = None
    """The line in it. Rows of one line of the program differ by it."""
    by_order_count: Count | None = None
    """Copies that threads of a library made after the call had returned: their line is about that of the call, by bytes
    and order."""
    # Copies that need not be:
    sampled_count: Count | None = None
    """Copies whose data was looked at; ``count`` and ``bytes`` are so many times what they show."""
    sent_by: Count | None = None
    """``number`` of the site that had brought most of the data to the GPU."""
    # DataLoaders:
    workers: Count | None = None
    """Processes that make its batches."""
