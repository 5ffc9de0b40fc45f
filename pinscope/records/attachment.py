"""What a run carries beside its observations: a table of many events."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pinscope.records.base import Record


class Attachment(Record):
    """One table of a run. It is kept in parts of a few megabytes, each of them a Parquet file."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,39}$")]
    """Unique in its run; part of the names of files in a bundle."""
    rows: Annotated[int, Field(ge=0)]
    """Of all its parts."""
    parts: Annotated[int, Field(ge=0)]
    """How many are stored."""
    bytes: Annotated[int, Field(ge=0)]
    """Of all its parts, as they are stored."""
