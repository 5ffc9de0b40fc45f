"""What all records share: frozen, strict about unknown fields, JSON both ways."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Self

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, model_validator


def _in_utc(moment: datetime) -> datetime:
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("the date is out of range") from None


Moment = Annotated[AwareDatetime, AfterValidator(_in_utc)]
"""A point in time, in UTC. One without time zone is refused: it would mean another moment on another machine."""


class Record(BaseModel):
    """A frozen value. Two records with equal fields are equal."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)
    # extra="ignore": a record written by a newer minor version may carry more fields; they are additive.


class Capability(Record):
    """One thing that PinScope can use here, or cannot."""

    name: str
    """Stable name, such as ``cuda-lab``."""
    title: str
    """The same for people, such as ``GPU experiments (CUDA lab)``."""
    works: bool
    """Whether it can be used here."""
    reason: str | None = None
    """Why it does not work; ``None`` if it does."""
    advice: str | None = None
    """What to do about it, where something can be done."""

    @model_validator(mode="after")
    def _says_why_not(self) -> Self:
        if self.works != (self.reason is None):
            raise ValueError("a capability that does not work needs a reason, one that works has none")
        return self


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
