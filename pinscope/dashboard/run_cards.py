"""A run on any page: its name, its badges, a link to it, and how far it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

import streamlit as st

from pinscope.analysis.read_rows import ReadRows
from pinscope.dashboard.labels import errors_shown, own_time, plain, prose, title
from pinscope.dashboard.pages import RUNS
from pinscope.dashboard.state import open_run
from pinscope.dashboard.widgets import Colour, answer, chart_view, verdict_line
from pinscope.errors import BadInput
from pinscope.experiments.registry import charts_of, find_reader
from pinscope.records.run import LAB_TITLES, Run, Status, TraceRun
from pinscope.report.facts import size_word
from pinscope.runner.jobs import cancel, reconcile
from pinscope.store.store import Store
from pinscope.units import format_seconds

PROGRESS_SECONDS = 0.5
CHART_SECONDS = 2.0
_STATUS: Mapping[Status, tuple[Colour, str]] = {
    "running": ("blue", ":material/progress_activity:"),
    "done": ("green", ":material/check:"),
    "failed": ("red", ":material/error:"),
    "cancelled": ("gray", ":material/block:"),
    "interrupted": ("orange", ":material/power_off:"),
}
_END_PROGRAM = ("End program", "Asks the program itself to end. What was recorded until then stays.")
"""Of a trace, which goes on as long as its program: what its button says, and what that means."""


def badges(run: Run) -> None:
    """Status, size and origin, side by side, in one element: a list of runs has many, and each costs a browser time."""
    colour, icon = _STATUS[run.status]
    found = [f":{colour}-badge[{icon} {run.status}]"]
    if size := size_word(run):
        found.append(f":gray-badge[{size}]")
    if run.lab == "host":
        found.append(f":violet-badge[{LAB_TITLES['host']}]")
    if run.recording:
        found.append(":yellow-badge[:material/inventory_2: recording]")
    st.markdown(" ".join(found))


def open_link(run: Run) -> None:
    """A link to the run, by its title."""
    st.page_link(RUNS.path, label=f"**{plain(title(run))}**", icon="", query_params={"run": run.id})


def run_progress(store: Store, run: Run, with_link: bool = True, with_chart: bool = False) -> None:
    """Draw a run that goes on; the whole page is drawn anew when it ends.

    Args:
        store: where it is kept.
        run: a run whose status is ``running``.
        with_link: name it, with a link to the page of its own.
        with_chart: draw what it has measured so far.
    """
    with st.container(border=True, key=f"progress-{run.id}"):
        st.fragment(_bar, run_every=PROGRESS_SECONDS)(store, run.id, with_link)
        if with_chart and not isinstance(run, TraceRun):  # whose rows come at its end
            st.fragment(_partial_chart, run_every=CHART_SECONDS)(store, run.id)


def _bar(store: Store, run_id: str, with_link: bool) -> None:
    with errors_shown():
        reconcile(store)  # a child that was killed cannot say so itself
        run = store.run(run_id)
        if run.status != "running":
            st.session_state.pop(_rows_key(run_id), None)
            st.rerun()
        left, right = st.columns([5, 1], vertical_alignment="center")
        with left:
            if with_link:
                open_link(run)
            st.caption(f"Started {own_time(run.created_at)} · {_outlook(run)}", unsafe_allow_html=True)
        label, tip = _END_PROGRAM if isinstance(run, TraceRun) else ("Cancel", None)
        if right.button(label, icon=":material/stop_circle:", key=f"cancel-{run.id}", width="stretch", help=tip):
            with st.spinner("Stopping …"), suppress(BadInput):  # it ended in the same moment
                cancel(store, run.id)
            st.rerun()
        waiting = run.progress.waiting_for
        if waiting:
            st.progress(0.0, text=f"Waiting for {plain(waiting)}, which uses the same device")
            return
        message = plain(run.progress.message or "starting")
        if run.expected_seconds is None:  # so that there is no share of it
            st.markdown(message)
        else:
            st.progress(run.progress.fraction, text=f"{run.progress.fraction:.0%} · {message}")


def _outlook(run: Run) -> str:
    """How long it will go on, and what it has measured."""
    if isinstance(run, TraceRun):
        return "until the program ends; then what it did stands here"
    seconds = run.expected_seconds
    length = "until stopped" if seconds is None else f"roughly {format_seconds(seconds)} in all"
    return f"{length} · {run.observations:,} observations so far"


def _partial_chart(store: Store, run_id: str) -> None:
    """The run's first chart from what it has measured so far."""
    with errors_shown():
        run = store.run(run_id)
        rows = _rows_so_far(store, run)
        charts = charts_of(run, rows) if rows else []
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


def run_answer(store: Store, run: Run) -> None:
    """A link to the run, its verdict with the figures, and the chart that shows it.

    A verdict that is known comes first: to open a run takes up to seconds.
    """
    with errors_shown():
        open_link(run)
        if run.verdict:
            verdict_line(run.verdict)
        document = open_run(store, run).document
        if document:
            answer(document.reading, with_verdict=not run.verdict)
            if document.charts:
                chart_view(document.charts[0], key=f"answer-{run.id}", border=False)


def run_list(store: Store, runs: Sequence[Run]) -> None:
    """Draw the runs in the order given; those that go on show how far they are."""
    for run in runs:
        if run.status == "running":
            run_progress(store, run)
            continue
        with st.container(border=True, key=f"run-{run.id}", gap="xsmall"):
            left, right = st.columns([5, 2], vertical_alignment="center")
            with left:
                open_link(run)
                if run.verdict:
                    st.markdown(prose(run.verdict))
                host, run_id = plain(run.environment.host), plain(run.id)
                line = f"{own_time(run.created_at)} · {run.observations:,} observations · {host} · {run_id}"
                st.caption(line, unsafe_allow_html=True)
            with right:
                badges(run)
