"""What a trace keeps of copies by size, and of the moment at which most memory was pinned."""

from __future__ import annotations

from pinscope.records.base import Record
from pinscope.records.host_calls import Count, Seconds


class AnswerFields(Record):
    """Fields of a trace's rows."""

    peak_at_seconds: Seconds | None = None
    """Of the program: when it had most pinned memory, from its start on."""
    before_bytes: Count | None = None
    """Of a program that was attached to: pinned memory that it had before, as the live view shows it; no line of the
    trace is known to have pinned it."""
    at_peak_bytes: Count | None = None
    """Of pinned memory: how much of the line's was there then."""
    most_bytes: Count | None = None
    """Of copies of one size, over the link in one direction: the largest that counts as such; the others are above a
    quarter of it."""
