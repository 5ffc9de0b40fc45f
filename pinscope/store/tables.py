"""The database's tables."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import (
    DDL,
    JSON,
    Column,
    DateTime,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    event,
)

from pinscope.store.documents import NAME_LENGTH, RUN_ID_LENGTH

SCHEMA_VERSION = 4
"""Raised with every new table (:data:`ADDED_IN`), and with fields of a run that an older PinScope would drop when it
changes one, as the labels (3); columns are not added to tables that are there. An older PinScope refuses a newer
database."""

HASH_LENGTH = 32


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
"""One row a part of an attachment."""

BLOCKS = Table(
    "observation_blocks",
    METADATA,
    _run_id(),
    Column("sequence", Integer, primary_key=True, autoincrement=False),
    Column("rows", Integer, nullable=False),
    Column("characters", Integer, nullable=False),
    Column("content", LargeBinary, nullable=False),
)
"""One row some hundreds of observations that were imported (:mod:`pinscope.store.packed`): those from ``sequence`` on,
which are not in :data:`OBSERVATIONS`. Nothing tries to compress ``content`` again. New in version 4."""
_AS_IT_IS = DDL("ALTER TABLE observation_blocks ALTER content SET STORAGE EXTERNAL")  # type: ignore[no-untyped-call]
event.listen(BLOCKS, "after_create", _AS_IT_IS.execute_if(dialect="postgresql"))

SHARED_TEXTS = Table(
    "shared_texts",
    METADATA,
    Column("id", String(HASH_LENGTH), primary_key=True),
    Column("document", Text, nullable=False),
)
"""What many runs have in common, once: the names of their figures, and what their machines are like. ``id`` is the hash
of it. New in version 4, as the next."""

FIGURES = Table(
    "figures",
    METADATA,
    _run_id(),
    Column("experiment", String(NAME_LENGTH), nullable=False),
    Column("lab", String(20), nullable=False),
    Column("created_at", DateTime(), nullable=False),
    Column("machine", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("gpu", Text, nullable=False),
    Column("device", Integer, nullable=False),
    Column("tags", Text, nullable=False),
    Column("layout", String(HASH_LENGTH), nullable=False),
    Column("surroundings", String(HASH_LENGTH), nullable=False),
    Column("content", LargeBinary, nullable=False),
    Index("ix_figures_experiment_lab_created_at", "experiment", "lab", "created_at"),
)
"""One row a run that has figures (:mod:`pinscope.store.figures`), so that a fleet is read without its runs.

``content``: a float of 32 bits for each figure of the layout, NaN where the run has none. ``tags``: each before a
comma.
"""


ADDED_IN: Mapping[int, frozenset[str]] = {4: frozenset({BLOCKS.name, SHARED_TEXTS.name, FIGURES.name})}
"""Version → tables that are new in it; older databases get them when they are first written to."""
