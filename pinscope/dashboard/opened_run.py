"""A run with all that is derived from it, worked out once and kept while it is looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import streamlit as st

from pinscope.charts.chart import Chart
from pinscope.errors import BadInput
from pinscope.experiments.registry import draw_run, find_reader, method, read_run
from pinscope.records.finding import Reading
from pinscope.records.run import Run
from pinscope.report.document import Document
from pinscope.store.store import Store

Row = dict[str, Any]


@dataclass(frozen=True)
class OpenedRun:
    """A run as the pages show it.

    Attributes:
        run: the run.
        rows: its observations, in the order in which they were measured.
        document: what reports are written from; ``None`` if this version cannot read the run.
        unreadable: why not.
    """

    run: Run
    rows: list[Row]
    document: Document | None
    unreadable: str | None = None

    @property
    def charts(self) -> list[Chart]:
        """The figures of the run."""
        return list(self.document.charts) if self.document else []


def open_run(store: Store, run: Run) -> OpenedRun:
    """The run with its rows, reading and charts.

    Raises:
        UnknownName: it has been deleted meanwhile.
        StoreFailed: the database cannot be read.
    """
    return _open(store, run, store.url, run.id, run.status, run.observations)


@st.cache_resource(show_spinner="Opening the run …", max_entries=8)
def _open(_store: Store, _run: Run, url: str, run_id: str, status: str, observations: int) -> OpenedRun:
    del url, status, observations  # with the id they tell whether the run is still the same
    rows = _store.observations(run_id)
    try:
        return OpenedRun(_run, rows, _document(_run, rows))
    except BadInput as error:  # from a newer version: its raw rows can still be shown
        return OpenedRun(_run, rows, None, str(error))


def _document(run: Run, rows: list[Row]) -> Document:
    kind = find_reader(run.experiment).kind
    reading = read_run(run, rows) if rows else Reading(headline=(), tables=(), findings=())
    charts = draw_run(run, rows) if rows else []
    return Document(
        run=run, title=kind.title, question=kind.question, method=method(kind),
        reading=reading, charts=charts, rows=rows, parameter_schema=kind.Params.model_json_schema(),
    )  # fmt: skip
