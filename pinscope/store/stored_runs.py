"""Runs and observations as the tables hold them: each is read by itself, so that a damaged one hides no other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC
from typing import Any

from pydantic import ValidationError
from sqlalchemy import Connection, Select, select
from sqlalchemy.exc import DatabaseError, NoResultFound, OperationalError

from pinscope.errors import StoreFailed
from pinscope.records.limits import RUN_BYTES
from pinscope.records.run import Run, parse_run
from pinscope.store.bounded import RECORD, RECORD_LENGTH
from pinscope.store.damage import Damage, DamagedRun
from pinscope.store.rows import first_complaint
from pinscope.store.tables import RunTable
from pinscope.units import format_bytes

OWN_COLUMNS = frozenset({"status", "progress", "observations", "recording"})
"""Fields of a run that do not stand in its document."""
RUN_COLUMNS = (
    RunTable.id, RunTable.status, RunTable.progress, RunTable.observations,
    RECORD.label("document"), RECORD_LENGTH.label("length"),
)  # fmt: skip


def as_columns(run: Run) -> dict[str, Any]:
    """A run as the values of its row, without the count of its observations."""
    document = run.model_dump(mode="json", exclude=set(OWN_COLUMNS))
    created = run.created_at.astimezone(UTC).replace(tzinfo=None)
    return {
        "id": run.id,
        "experiment": run.experiment,
        "lab": run.lab,
        "status": run.status,
        "created_at": created,
        "progress": run.progress.model_dump(mode="json"),
        "document": document,
    }


def as_run(row: Mapping[Any, Any]) -> Run:
    """A stored run.

    Raises:
        StoreFailed: it cannot be read.
    """
    run = run_or_damage(row)
    if isinstance(run, DamagedRun):
        raise StoreFailed(str(run))
    return run


def run_or_damage(row: Mapping[Any, Any] | DamagedRun) -> Run | DamagedRun:
    """A stored run, or why it cannot be read."""
    if isinstance(row, DamagedRun):
        return row
    if row["length"] > RUN_BYTES:
        limit = format_bytes(RUN_BYTES)
        return DamagedRun(
            _text(row["id"]), f"its record is {format_bytes(row['length'])}, and {limit} are read at most"
        )
    fields = {key: row[key] for key in ("id", "status", "progress", "observations")}
    try:
        for part in (row["document"], row["progress"]):
            if isinstance(part, Damage):
                return DamagedRun(_text(row["id"]), part.why)
        return parse_run({**row["document"], **fields})
    except ValidationError as error:
        return DamagedRun(_text(row["id"]), first_complaint(error))
    except TypeError:
        return DamagedRun(_text(row["id"]), "it is not a document")


def _text(found: str | bytes) -> str:
    return found if isinstance(found, str) else found.decode(errors="replace")


def ids_of(connection: Connection, query: Select[Any]) -> list[str]:
    """The ids that a query finds; where the file itself is damaged, all that its index has, the latest first."""
    try:
        return list(connection.scalars(query))
    except DatabaseError as error:
        _refuse_unless_damaged(connection, error)
    return list(connection.scalars(select(RunTable.id).order_by(RunTable.id.desc())))


def fetched(connection: Connection, ids: Sequence[str]) -> list[Mapping[Any, Any] | DamagedRun]:
    """The rows of runs; where the file itself is damaged, those that can still be fetched one by one."""
    try:
        return list(connection.execute(select(*RUN_COLUMNS).where(RunTable.id.in_(ids))).mappings())
    except DatabaseError as error:
        _refuse_unless_damaged(connection, error)
    return [_fetched_alone(connection, run_id) for run_id in ids]


def _refuse_unless_damaged(connection: Connection, error: DatabaseError) -> None:
    """Pass an error on that says nothing of damage: the database cannot be reached now."""
    if isinstance(error, OperationalError) or connection.dialect.name != "sqlite":
        raise error


def _fetched_alone(connection: Connection, run_id: str) -> Mapping[Any, Any] | DamagedRun:
    try:
        return connection.execute(select(*RUN_COLUMNS).where(RunTable.id == run_id)).mappings().one()
    except (DatabaseError, NoResultFound) as error:
        why = error.orig if isinstance(error, DatabaseError) else "its row is missing"
        return DamagedRun(run_id, str(why))


def read_run(connection: Connection, run_id: str, lock: bool = False) -> Run | None:
    """The run of exactly that id.

    Raises:
        StoreFailed: it cannot be read.
    """
    query: Select[Any] = select(*RUN_COLUMNS).where(RunTable.id == run_id)
    row = connection.execute(query.with_for_update() if lock else query).mappings().one_or_none()
    return None if row is None else as_run(row)
