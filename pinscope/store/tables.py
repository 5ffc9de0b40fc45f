"""The tables. A run's facts that change while it runs have columns of their own; the rest is one document."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import (
    JSON,
    Column,
    DateTime,
    ForeignKey,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    case,
    cast,
    func,
)

from pinscope.records.limits import ROW_BYTES, RUN_BYTES

SCHEMA_VERSION = 2
"""Raised with every change of the tables; an older PinScope refuses a newer database."""

RUN_ID_LENGTH = 100
NAME_LENGTH = 100
"""Longest name of an experiment."""


METADATA = MetaData()
_DOCUMENT = JSON(none_as_null=True)
"""JSON text: floats come back bit by bit."""


def _run_id() -> Column[str]:
    """Names the run that a row belongs to, and goes with."""
    return Column(
        "run_id", String(RUN_ID_LENGTH), ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True, nullable=False
    )


META = Table("meta", METADATA, Column("schema_version", Integer, primary_key=True, autoincrement=False))
"""One row: which version of the tables this database holds."""

RUNS = Table(
    "runs",
    METADATA,
    Column("id", String(RUN_ID_LENGTH), primary_key=True),
    Column("experiment", String(NAME_LENGTH), index=True, nullable=False),
    Column("lab", String(20), index=True, nullable=False),
    Column("status", String(20), index=True, nullable=False),
    Column("created_at", DateTime(), index=True, nullable=False),
    Column("observations", Integer, nullable=False),
    Column("progress", _DOCUMENT, nullable=False),
    Column("document", _DOCUMENT, nullable=False),
)
"""One row a run.

``created_at`` is in UTC, without zone, so that every database sorts it alike. ``observations`` says how many rows are
stored; the next row gets this sequence number. ``document`` has every other field of the run.
"""

OBSERVATIONS = Table(
    "observations",
    METADATA,
    _run_id(),
    Column("sequence", Integer, primary_key=True, autoincrement=False),
    Column("row", _DOCUMENT, nullable=False),
    sqlite_with_rowid=False,
)
"""One row an observation, in the order in which they were measured."""

PARTS = Table(
    "attachments",
    METADATA,
    _run_id(),
    Column("name", String(NAME_LENGTH), primary_key=True),
    Column("sequence", Integer, primary_key=True, autoincrement=False),
    Column("content", LargeBinary, nullable=False),
)
"""One row a part of an attachment. New in version 2."""


ADDED_IN: Mapping[int, frozenset[str]] = {2: frozenset({PARTS.name})}
"""Version → tables that are new in it; older databases get them when they are first written to."""

# What an older version stored may be of any size: text is loaded only if it is no larger than it may be.
RECORD_LENGTH = func.length(cast(RUNS.c.document, Text))
"""Of a run's own record, in characters."""
RECORD = case((RECORD_LENGTH <= RUN_BYTES, RUNS.c.document), else_=None)
"""A run's own record; ``None`` if it is too large."""
ROW_LENGTH = func.length(cast(OBSERVATIONS.c.row, Text))
"""Of an observation, in characters."""
ROW = case((ROW_LENGTH <= ROW_BYTES, OBSERVATIONS.c.row), else_=None)
"""An observation; ``None`` if it is too large."""
