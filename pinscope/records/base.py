"""What all records share: frozen, strict about unknown fields, JSON both ways."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict


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
