"""What all pages and all browser tabs share: the open store, this machine, and the runs that are looked at."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import streamlit as st

from pinscope.analysis.outliers import Fleet
from pinscope.errors import BadInput
from pinscope.live.source import open_source
from pinscope.probes.environment import capture_environment
from pinscope.records.base import ROWS_READ
from pinscope.records.environment import Environment
from pinscope.records.run import ExperimentRun, LabKind, Run, TimelineRun, TraceRun
from pinscope.records.snapshot import Snapshot
from pinscope.report.comparison import compare_runs
from pinscope.report.facts import Document, called, open_document
from pinscope.report.fleet import read_fleet
from pinscope.report.trend import figures, trend_of
from pinscope.runner.jobs import reconcile
from pinscope.store.anonymous import ANONYMOUS, AnonymousStore
from pinscope.store.store import Store
from pinscope.tracing.stretch import TABLES

PAGE_EVENTS = 100_000
"""Calls, copies and kernels of a trace that a page makes a file for Perfetto of: 30 MB."""
_ANONYMOUS = "anonymous"


def store() -> Store:
    """The store, opened once per server; runs whose child is gone are marked then.

    Raises:
        StoreFailed: the database cannot be used; the next call tries again.
    """
    return _open_store(os.environ.get("PINSCOPE_DATABASE"))


@st.cache_resource(show_spinner=False, on_release=Store.close)
def _open_store(address: str | None) -> Store:
    opened = Store(address)
    reconcile(opened)
    return opened


@st.cache_resource(show_spinner=False, ttl=30)
def environment() -> Environment:
    """This machine as it was up to half a minute ago, for display and for the budget line."""
    return capture_environment()


@st.cache_resource(show_spinner=False, ttl=10)
def snapshot() -> Snapshot:
    """Who holds pinned memory, as it was up to ten seconds ago: for a page that does not follow it."""
    with open_source() as source:
        return source.take()


@dataclass(frozen=True)
class OpenedRun:
    """A run as the pages show it.

    Attributes:
        run: the run.
        rows: its observations, in the order in which they were measured; read from the database when asked for.
        document: what reports are written from; ``None`` if this version cannot read the run.
        unreadable: why not.
        has_spans: it has the copies and kernels of a timeline, not too many for a file from a page.
    """

    run: Run
    rows: Sequence[dict[str, Any]]
    document: Document | None
    unreadable: str | None = None
    has_spans: bool = False

    @property
    def is_large(self) -> bool:
        """Its observations are more than a page makes a file of."""
        return self.run.observations > ROWS_READ

    def whole(self) -> Document:
        """The document as a report has it: with the charts that need the single events."""
        if self.document is None or not self.document.attached.rows:
            return cast("Document", self.document)
        return open_document(self.run, self.rows, self.document.attached)


def anonymous_choice() -> bool:
    """Whether files are to name nobody; the choice itself."""
    return st.toggle("Anonymous", key=_ANONYMOUS, help=ANONYMOUS)


def is_anonymous() -> bool:
    """What was chosen last in this tab."""
    return bool(st.session_state.get(_ANONYMOUS))


def anonymous_document(kept: Store, run_id: str) -> Document:
    """The run as a report has it that names nobody."""
    source = AnonymousStore(kept)
    run = source.run(run_id)
    return open_document(run, source.observations(run.id), source.attached(run))


def _version(run: Run) -> tuple[object, ...]:
    """What tells whether a run is still the same."""
    return run.id, run.status, run.observations, called(run), run.note


_SAME: dict[Any, Callable[[Any], Any]] = {
    Store: lambda opened: opened.url,
    **dict.fromkeys((ExperimentRun, TimelineRun, TraceRun), _version),
}


@st.cache_resource(show_spinner="Opening the run …", max_entries=8, hash_funcs=_SAME)
def open_run(store: Store, run: Run) -> OpenedRun:
    """The run with its rows, reading and charts.

    Raises:
        UnknownName: it has been deleted meanwhile.
        StoreFailed: the database cannot be read.
    """
    rows = store.observations(run.id)
    try:
        document = open_document(run, rows)
        bool(document.charts)  # draws the first
    except BadInput as error:  # from a newer version: its raw rows can still be shown
        return OpenedRun(run, rows, None, str(error))
    has_spans = run.observations <= ROWS_READ and any(row.get("kind") == "span" for row in rows)
    attached = store.attached(run)
    if isinstance(run, TraceRun):
        has_spans = 0 < sum(attached.rows.get(name, 0) for name in TABLES) <= PAGE_EVENTS
    document = replace(document, attached=attached)
    return OpenedRun(document.run, rows, document, has_spans=has_spans)


compared = st.cache_resource(show_spinner="Comparing …", max_entries=4, hash_funcs=_SAME)(compare_runs)
"""As :func:`~pinscope.report.comparison.compare_runs`, of sides that are tuples."""


@st.cache_resource(show_spinner="Reading the fleet …", max_entries=4, hash_funcs=_SAME)
def fleet(store: Store, experiment: str, lab: LabKind, count: int) -> Fleet:
    """The runs of an experiment on all hosts; ``count``: how many there are, which tells whether some came.

    Raises:
        BadInput: there is none.
    """
    del count
    return read_fleet(store, experiment, lab)


figures_of = st.cache_resource(show_spinner="Reading the newest run …", max_entries=16, hash_funcs=_SAME)(figures)
"""As :func:`~pinscope.report.trend.figures`."""


trend = st.cache_resource(show_spinner="Reading the runs …", max_entries=8, hash_funcs=_SAME)(trend_of)
"""As :func:`~pinscope.report.trend.trend_of`, of runs that are a tuple."""
