"""What all records share: frozen, strict about unknown fields, JSON both ways."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """A frozen value. Two records with equal fields are equal."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)
    # extra="ignore": a record written by a newer minor version may carry more fields; they are additive.
