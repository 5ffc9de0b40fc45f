"""The tables. A run's facts that change while it runs have columns of their own; the rest is one document."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import JSON, DateTime, ForeignKey, String, Text, case, cast, func
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from pinscope.records.limits import ROW_BYTES, RUN_BYTES

SCHEMA_VERSION = 2
"""Raised with every change of the tables; an older PinScope refuses a newer database."""

RUN_ID_LENGTH = 100
NAME_LENGTH = 100
"""Longest name of an experiment."""


class Table(DeclarativeBase):
    """Base of the tables. Documents are JSON text: floats come back bit by bit."""

    type_annotation_map: ClassVar[dict[Any, Any]] = {dict[str, Any]: JSON(none_as_null=True)}


class MetaTable(Table):
    """One row: which version of the tables this database holds."""

    __tablename__ = "meta"

    schema_version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


class RunTable(Table):
    """One row a run."""

    __tablename__ = "runs"

    id: Mapped[str] = mapped_column(String(RUN_ID_LENGTH), primary_key=True)
    experiment: Mapped[str] = mapped_column(String(NAME_LENGTH), index=True)
    lab: Mapped[str] = mapped_column(String(20), index=True)
    status: Mapped[str] = mapped_column(String(20), index=True)
    created_at: Mapped[datetime] = mapped_column(DateTime(), index=True)
    """In UTC, without zone, so that every database sorts it alike."""
    observations: Mapped[int]
    """How many rows are stored; the next row gets this sequence number."""
    progress: Mapped[dict[str, Any]]
    document: Mapped[dict[str, Any]]
    """Every other field of the run."""


class ObservationTable(Table):
    """One row an observation, in the order in which they were measured."""

    __tablename__ = "observations"
    __table_args__ = {"sqlite_with_rowid": False}  # noqa: RUF012 - SQLAlchemy's own declaration

    run_id: Mapped[str] = mapped_column(
        String(RUN_ID_LENGTH), ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True
    )
    sequence: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    row: Mapped[dict[str, Any]]


class PartTable(Table):
    """One row a part of an attachment. New in version 2."""

    __tablename__ = "attachments"

    run_id: Mapped[str] = mapped_column(
        String(RUN_ID_LENGTH), ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True
    )
    name: Mapped[str] = mapped_column(String(NAME_LENGTH), primary_key=True)
    sequence: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    content: Mapped[bytes]


ADDED_IN: Mapping[int, frozenset[str]] = {2: frozenset({PartTable.__tablename__})}
"""Version → tables that are new in it; older databases get them when they are first written to."""

# What an older version stored may be of any size: text is loaded only if it is no larger than it may be.
RECORD_LENGTH = func.length(cast(RunTable.document, Text))
"""Of a run's own record, in characters."""
RECORD = case((RECORD_LENGTH <= RUN_BYTES, RunTable.document), else_=None)
"""A run's own record; ``None`` if it is too large."""
ROW_LENGTH = func.length(cast(ObservationTable.row, Text))
"""Of an observation, in characters."""
ROW = case((ROW_LENGTH <= ROW_BYTES, ObservationTable.row), else_=None)
"""An observation; ``None`` if it is too large."""
