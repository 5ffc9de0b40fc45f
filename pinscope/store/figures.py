"""The figures of runs, beside the runs: a fleet of ten thousand GPUs is read from here in a second."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from datetime import UTC
from importlib import import_module
from itertools import starmap
from typing import Any

import numpy as np
from sqlalchemy import Connection, func, insert, inspect, or_, select, update

from pinscope.analysis.machine_keys import surroundings
from pinscope.analysis.outliers import FLOAT, FleetRun
from pinscope.records.run import LabKind, Run
from pinscope.store import documents, tables
from pinscope.store.database import Database


def row_of(run: Run) -> tuple[dict[str, Any], dict[str, str]] | None:
    """The row of a run that has figures, and the texts that it names, by their hash; ``None`` of others."""
    if run.figures is None or run.status != "done":
        return None
    known = (documents.dump_json({**surroundings(run), **run.figures.facts}), run.figures.layout)
    around, layout = (hashlib.blake2b(text.encode(), digest_size=tables.HASH_LENGTH // 2).hexdigest() for text in known)
    values = np.array([np.nan if value is None else value for value in run.figures.values], FLOAT)
    row = {
        "run_id": run.id,
        "experiment": run.experiment,
        "lab": run.lab,
        "created_at": run.created_at.astimezone(UTC).replace(tzinfo=None),
        "machine": run.environment.machine_id,
        "host": run.environment.host,
        "gpu": run.gpu.uuid if run.gpu else "",
        "device": getattr(run, "device", 0),
        "tags": ",".join(run.tags),
        "layout": layout,
        "surroundings": around,
        "content": values.tobytes(),
    }
    return row, {around: known[0], layout: known[1]}


class FigureTable:
    """Writes figures. The texts that runs share are written once, each before a run that names it."""

    def __init__(self) -> None:
        self._there: set[str] = set()

    def keep_texts(self, connection: Connection, texts: Mapping[str, str]) -> None:
        """Store those that are not there. On a server in a transaction of their own: two that store the same would
        wait for each other's end, and might for ever."""
        new = [{"id": name, "document": text} for name, text in sorted(texts.items()) if name not in self._there]
        if not new:
            return
        dialect = import_module(f"sqlalchemy.dialects.{connection.dialect.name}")
        added = dialect.insert(tables.SHARED_TEXTS).on_conflict_do_nothing()
        if connection.dialect.name == "sqlite":
            connection.execute(added, new)
        else:
            with connection.engine.begin() as own:
                own.execute(added, new)
            self._there.update(texts)

    def keep(self, connection: Connection, run: Run) -> None:
        """Store the figures of a run, in the place of those that it had."""
        if known := row_of(run):
            row, texts = known
            self.keep_texts(connection, texts)
            connection.execute(tables.FIGURES.delete().where(tables.FIGURES.c.run_id == run.id))
            connection.execute(insert(tables.FIGURES), [row])

    @staticmethod
    def keep_tags(connection: Connection, run: Run) -> None:
        """Labels may change at any time."""
        at = tables.FIGURES.c.run_id == run.id
        connection.execute(update(tables.FIGURES).where(at).values(tags=",".join(run.tags)))


def _are_kept(connection: Connection) -> bool:
    """Whether the database keeps figures; one of an older schema does from the next time that it is written to."""
    return inspect(connection).has_table(tables.FIGURES.name)


def stored_figures(database: Database, experiment: str, lab: str, newest: int) -> tuple[list[FleetRun], dict[str, str]]:
    """The newest runs of each GPU, GPU by GPU, the newest first; and the texts that they share, by their hash.

    Args:
        database: to read.
        experiment, lab: of the runs.
        newest: how many runs of a GPU.
    """
    columns, gpu = tables.FIGURES.c, ("host", "machine", "device", "gpu")
    latest = columns.created_at.desc(), columns.run_id
    rank = func.row_number().over(partition_by=[columns[name] for name in gpu], order_by=latest)
    of_it = columns.experiment == experiment, columns.lab == lab
    inner = select(tables.FIGURES, rank.label("rank")).where(*of_it).subquery().c
    query = select(*(inner[name] for name in FleetRun._fields)).where(inner.rank <= newest)
    query = query.order_by(*(inner[name] for name in (*gpu, "rank")))
    shared = tables.SHARED_TEXTS.c
    named = or_(*(shared.id.in_(select(of).where(*of_it)) for of in (columns.layout, columns.surroundings)))
    with database.reading() as connection:
        if not _are_kept(connection):
            return [], {}
        runs = list(starmap(FleetRun, connection.execute(query).all()))
        return runs, dict(map(tuple, connection.execute(select(shared.id, shared.document).where(named))))


def runs_without_figures(database: Database, experiment: str, lab: str) -> list[str]:
    """Ids of runs that have ended well, but of which an older PinScope kept no figures; the newest first."""
    runs = tables.RUNS.c
    kept = select(tables.FIGURES.c.run_id).where(tables.FIGURES.c.run_id == runs.id).exists()
    query = select(runs.id).where(runs.experiment == experiment, runs.lab == lab, runs.status == "done")
    with database.reading() as connection:
        if _are_kept(connection):
            query = query.where(~kept)
        return list(connection.scalars(query.order_by(runs.created_at.desc())))


def experiments_with_figures(database: Database) -> Iterator[tuple[str, LabKind, int]]:
    """Experiment, lab and how many of its runs have figures; those with most first."""
    columns = tables.FIGURES.c
    count = func.count()
    query = select(columns.experiment, columns.lab, count).group_by(columns.experiment, columns.lab)
    with database.reading() as connection:
        if _are_kept(connection):
            yield from map(tuple, connection.execute(query.order_by(count.desc())))
