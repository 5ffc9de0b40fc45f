"""What all records share: frozen, JSON both ways, fields of a newer version ignored; and the bounds of what is read."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field


def _in_utc(moment: datetime) -> datetime:
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("the date is out of range") from None


Moment = Annotated[AwareDatetime, AfterValidator(_in_utc)]
"""A point in time, in UTC. One without time zone is refused: it would mean another moment on another machine."""

Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0)]


class Record(BaseModel):
    """A frozen value. Two records with equal fields are equal."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False, defer_build=True)
    # extra="ignore": a record written by a newer minor version may carry more fields; they are additive.
    # defer_build: a command uses few of all records, and to build them takes a twentieth of a second or two.


class Capability(Record):
    """One thing that PinScope can use here, or cannot."""

    name: str
    """Stable name, such as ``cuda-lab``."""
    title: str
    """Its title, such as ``GPU experiments (CUDA lab)``."""
    works: bool
    """Whether it can be used here."""
    reason: str | None = None
    """Why it does not work; ``None`` if it does."""
    advice: str | None = None
    """What to do about it, where something can be done."""


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
    """Of the pinned bytes, what must stand on hugetlb pages of the usual size, which root reserves beforehand."""


MIB = 2**20

# A bundle
BUNDLE_RUNS = 10_000
BUNDLE_ROWS = 1_000_000
"""Observations of all its runs together."""
BUNDLE_BYTES = 512 * MIB
"""Unpacked, without attachments."""
MANIFEST_BYTES = 2 * MIB
UPLOAD_MIB = 64
"""What the dashboard takes or gives as one file; it holds it in memory. The command line has no such limit."""

# A run's own record
RUN_BYTES = MIB // 4
"""Of its JSON: parameters, budget, environment and notes."""

LAYOUT_CHARACTERS = MIB // 16
"""Of the names of a run's figures; the largest recording has 30,000."""
MOST_FIGURES = 8_000

# An observation
ROW_BYTES = MIB // 4
"""Of its JSON, on one line of a bundle."""
ROW_FIELDS = 128
NAME_CHARACTERS = 100
"""Of the name of a field."""
TEXT_CHARACTERS = 8192
"""Of all text in one observation."""
FIELD_NAMES = 512
"""Different names of fields in all observations of a run."""

# An attachment: a table of many events, in parts
ATTACHMENTS = 16
"""Of one run."""
PART_ROWS = 2**17
PART_COLUMNS = 64
PART_BYTES = 16 * MIB
"""Of one part, which is in memory whole; ten million events of eight columns are 77 parts of 2.4 MB."""
BUNDLE_PARTS = 10_000
"""Of all attachments in a bundle together, as the two that follow."""
BUNDLE_PART_ROWS = 100_000_000
BUNDLE_PART_BYTES = 2048 * MIB
"""No ratio of unpacked to packed bytes limits a part: its size alone bounds the memory that it takes."""

# A reading
ROWS_READ = 250_000
"""Figures and charts are derived from so many observations of a run at most, the first ones."""
COMBINATIONS_READ = 4_000
"""Different combinations of labels among them; the largest recording has 500."""
DEVICES_READ = 64
"""Different GPUs among them: each has a panel in the charts."""
TEXT_READ = 8 * MIB
"""Characters of different texts among them."""
SPANS = 100_000
"""Copies and kernels in a file for Perfetto."""
TRACE_EVENTS = 500_000
"""Calls, copies and kernels of a trace in such a file: those that began first."""
