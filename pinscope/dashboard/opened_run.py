"""A run with all that is derived from it, worked out once and kept while it is looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import streamlit as st

from pinscope.charts.chart import Chart
from pinscope.errors import BadInput
from pinscope.records.limits import MIB, UPLOAD_MIB
from pinscope.records.run import Run
from pinscope.report.document import Document, open_document
from pinscope.store.observations import StoredRows
from pinscope.store.store import Store

Row = dict[str, Any]


@dataclass(frozen=True)
class OpenedRun:
    """A run as the pages show it.

    Attributes:
        run: the run.
        rows: its observations, in the order in which they were measured; read from the database when asked for.
        document: what reports are written from; ``None`` if this version cannot read the run.
        unreadable: why not.
        has_spans: some of its observations are copies and kernels of a timeline.
        is_large: its observations are more than a page makes a file of.
    """

    run: Run
    rows: Sequence[Row]
    document: Document | None
    unreadable: str | None = None
    has_spans: bool = False
    is_large: bool = False

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
    is_large = isinstance(rows, StoredRows) and rows.characters() > UPLOAD_MIB * MIB
    try:
        document = open_document(_run, rows)
    except BadInput as error:  # from a newer version: its raw rows can still be shown
        return OpenedRun(_run, rows, None, str(error), is_large=is_large)
    has_spans = not is_large and any(row.get("kind") == "span" for row in rows)
    return OpenedRun(document.run, rows, document, has_spans=has_spans, is_large=is_large)
