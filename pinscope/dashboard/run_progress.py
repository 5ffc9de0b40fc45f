"""A run while it goes: how far it is, what it waits for, what it measured so far, and a way to stop it."""

from __future__ import annotations

import streamlit as st

from pinscope.dashboard.chart_view import chart_view
from pinscope.dashboard.failures import one_clear_line, show_error
from pinscope.dashboard.plain import plain
from pinscope.dashboard.run_link import open_link
from pinscope.dashboard.run_words import started
from pinscope.dashboard.tabs import live
from pinscope.errors import BadInput
from pinscope.experiments.read_rows import ReadRows
from pinscope.experiments.registry import draw_run, find_reader
from pinscope.records.run import Run
from pinscope.runner.jobs import cancel, reconcile
from pinscope.store.store import Store
from pinscope.units import format_seconds

PROGRESS_SECONDS = 0.5
CHART_SECONDS = 2.0


def run_progress(store: Store, run: Run, with_link: bool = True, with_chart: bool = False) -> None:
    """Draw a run that goes on; the whole page is drawn anew when it ends.

    Args:
        store: where it is kept.
        run: a run whose status is ``running``.
        with_link: name it, with a link to the page of its own.
        with_chart: draw what it has measured so far.
    """
    with st.container(border=True, key=f"progress-{run.id}"):
        live(_bar, PROGRESS_SECONDS, store, run.id, with_link)
        if with_chart:
            live(_partial_chart, CHART_SECONDS, store, run.id)


def _bar(store: Store, run_id: str, with_link: bool) -> None:
    with one_clear_line():
        reconcile(store)  # a child that was killed cannot say so itself
        run = store.run(run_id)
        if run.status != "running":
            st.session_state.pop(_rows_key(run_id), None)
            st.rerun()
        left, right = st.columns([5, 1], vertical_alignment="center")
        with left:
            if with_link:
                open_link(run)
            seconds = run.expected_seconds
            length = "until stopped" if seconds is None else f"roughly {format_seconds(seconds)} in all"
            st.caption(f"Started {started(run)} · {length} · {run.observations:,} observations so far")
        if right.button("Cancel", icon=":material/stop_circle:", key=f"cancel-{run.id}", width="stretch"):
            _cancel(store, run)
        waiting = run.progress.waiting_for
        if waiting:
            st.progress(0.0, text=f"Waiting for {plain(waiting)}, which uses the same device")
        else:
            message = plain(run.progress.message or "starting")
            st.progress(run.progress.fraction, text=f"{run.progress.fraction:.0%} · {message}")


def _cancel(store: Store, run: Run) -> None:
    try:
        with st.spinner("Stopping …"):
            cancel(store, run.id)
    except BadInput as error:  # it ended in the same moment
        show_error(error)
    st.rerun()


def _partial_chart(store: Store, run_id: str) -> None:
    """The run's first chart from what it has measured so far."""
    with one_clear_line():
        run = store.run(run_id)
        rows = _rows_so_far(store, run)
        charts = draw_run(run, rows) if rows else []
        if charts:
            chart_view(charts[0], key=f"partial-{run_id}", border=False)
        else:
            st.caption("A chart appears here with the first observations.")


def _rows_so_far(store: Store, run: Run) -> ReadRows:
    """All rows that a chart may rest on; only the new ones are fetched."""
    kind = find_reader(run.experiment).kind
    rows: ReadRows = st.session_state.setdefault(_rows_key(run.id), ReadRows(kind.Observation))
    rows.add(store.observations(run.id, start=len(rows)) if rows.cut is None else ())
    return rows


def _rows_key(run_id: str) -> str:
    return f"rows of {run_id}"
