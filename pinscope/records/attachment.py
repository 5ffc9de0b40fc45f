"""What a run carries beside its observations: a table of many events."""

from __future__ import annotations

from pinscope.records.base import Record


class Attachment(Record):
    """One table of a run, kept in parts of a few megabytes; each part is a Parquet file by itself."""

    name: str
    rows: int
    """Of all its parts."""
    parts: int
    bytes: int
    """Of all its parts, as they are stored."""
