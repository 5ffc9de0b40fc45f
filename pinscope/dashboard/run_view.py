"""A run on any page: its badges, a link to it, how far it is, and one run in full with the files to take away."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from pinscope.analysis.read_rows import ReadRows
from pinscope.dashboard import widgets
from pinscope.dashboard.pages import COMPARE, RUNS
from pinscope.dashboard.state import OpenedRun, anonymous_choice, anonymous_document, open_run
from pinscope.dashboard.trace_view import trace_view
from pinscope.dashboard.widgets import (
    Colour,
    answer,
    chart_view,
    errors_shown,
    help_links,
    plain,
    prose,
    title,
    utc,
    verdict_line,
)
from pinscope.errors import BadInput
from pinscope.experiments.registry import draw_run, find_reader
from pinscope.records.base import BUNDLE_ROWS
from pinscope.records.run import LAB_TITLES, Run, Status, TraceRun
from pinscope.report import facts
from pinscope.report.write import render
from pinscope.runner.jobs import cancel, reconcile
from pinscope.store.anonymous import SUFFIX, AnonymousStore
from pinscope.store.bundle import render_bundle
from pinscope.store.choice import NEWEST, as_sides
from pinscope.store.documents import checked_labels
from pinscope.store.store import Store
from pinscope.text import visible
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
    marks = [f":{colour}-badge[{icon} {run.status}]"]
    if size := facts.size_word(run):
        marks.append(f":gray-badge[{size}]")
    if run.lab == "host":
        marks.append(f":violet-badge[{LAB_TITLES['host']}]")
    if run.recording:
        marks.append(":yellow-badge[:material/inventory_2: recording]")
    st.markdown(" ".join(marks))


def run_link(run: Run, label: str = "", icon: str = "") -> None:
    """A link to the run, by its title where there is no other label."""
    st.page_link(RUNS.path, label=label or f"**{plain(title(run))}**", icon=icon, query_params={"run": run.id})


def compare_link(runs: Sequence[Run], label: str) -> None:
    """A link to the comparison of these runs; to a choice of the other side if there is but one."""
    sides = {side: ",".join(ids) for side, ids in zip("ab", as_sides(runs), strict=True) if ids}
    st.page_link(COMPARE.path, label=label, icon=COMPARE.icon, query_params=sides)


def stop_button(key: str, stop: Callable[[], object], label: str = "Cancel", tip: str | None = None) -> None:
    """A button that stops what goes on, and draws the page anew."""
    if st.button(label, icon=":material/stop_circle:", key=key, width="stretch", help=tip):
        with st.spinner("Stopping …"), suppress(BadInput):  # it ended in the same moment
            stop()
        st.rerun()


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
                run_link(run)
            st.caption(f"Started {utc(run.created_at)} · {_outlook(run)}")
        label, tip = _END_PROGRAM if isinstance(run, TraceRun) else ("Cancel", None)
        with right:
            stop_button(f"cancel-{run.id}", lambda: cancel(store, run.id), label, tip)
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


def run_answer(store: Store, run: Run) -> None:
    """A link to the run, its verdict with the figures, and the chart that shows it.

    A verdict that is known comes first: to open a run takes up to seconds.
    """
    with errors_shown():
        run_link(run)
        if run.verdict:
            verdict_line(run.verdict)
        document = open_run(store, run).document
        if document:
            answer(document.reading, with_verdict=not run.verdict)
            if document.charts:
                chart_view(document.charts[0], key=f"answer-{run.id}", border=False)


def run_table(store: Store, runs: Sequence[Run], with_boxes: bool = False) -> None:
    """Draw the runs in the order given, a line each; those that go on show how far they are.

    ``with_boxes``: each line begins with a box that puts the run among those to compare, or takes it away.
    """
    with st.container(key="runs-head"):
        for place, word in zip(st.columns(_WIDTHS), ("", "Run", "Answer", "Figure", "Measured", ""), strict=True):
            place.caption(word)
    for run in runs:
        if run.status == "running":
            run_progress(store, run)
            continue
        with st.container(key=f"run-{run.id}"):
            _line(store, run, *st.columns(_WIDTHS, vertical_alignment="center"), with_box=with_boxes)


TICK = "tick-"
"""Before the id of a run: key of its box."""
_WIDTHS = (0.3, 2.6, 4, 2, 2.6, 0.9)


def _line(store: Store, run: Run, *places: DeltaGenerator, with_box: bool) -> None:
    start, name, said, figure, measured, end = places
    if with_box:  # keeps what it is, whatever the list shows meanwhile
        label = f"Compare {visible(run.id)}"
        start.checkbox(label, key=f"{TICK}{run.id}", label_visibility="collapsed", persist_state="session")
    with name, st.container(gap="xsmall"):
        run_link(run)
        if words := facts.called(run):
            st.markdown(plain(words))
    said.markdown(prose(run.verdict or run.error or ""))
    if run.figure:
        figure.markdown(f"**{prose(facts.quantity_text(run.figure))}**  \n{prose(run.figure.name)}")
    with measured, st.container(gap="xsmall"):
        badges(run)
        host, run_id = plain(run.environment.host), plain(run.id)
        st.caption(f"{utc(run.created_at)} · {run.observations:,} observations · {host} · {run_id}")
    with end:
        edit_button(store, run, f"edit-{run.id}")


def edit_button(store: Store, run: Run, key: str) -> None:
    """A button that asks what its user calls a run; recordings have their names."""
    label, tip = "Edit", "Name, tags, note, star"
    if not run.recording and st.button(label, icon=":material/edit:", key=key, width="stretch", help=tip):
        _edit(store, run)


@st.dialog("What is this run called?")
def _edit(store: Store, run: Run) -> None:
    with st.form("labels", border=False):
        name = st.text_input("Name", run.name or "")
        tags = st.text_input("Tags (by comma)", ", ".join(run.tags))
        note = st.text_area("Note", run.note or "")
        baseline = st.toggle("Baseline: others are compared with it", run.baseline)
        if st.form_submit_button("Save", type="primary"):
            with errors_shown():
                words = dict.fromkeys(filter(None, map(str.strip, tags.split(","))))
                labels = checked_labels(name=name or None, tags=tuple(words), note=note or None, baseline=baseline)
                store.update(run.id, **labels)
                st.rerun()


ROWS_A_PAGE = 500
REPORTS: Mapping[str, tuple[str, str]] = {
    ".html": ("HTML report", "text/html"),
    ".md": ("Markdown report", "text/markdown"),
    ".csv": ("Observations, CSV", "text/csv"),
    ".parquet": ("Observations, Parquet", "application/vnd.apache.parquet"),
    ".json": ("Run, JSON", "application/json"),
    ".perfetto.json": ("Timeline, Perfetto", "application/json"),
}
"""Suffix of a file that a run can be written to → what it is called, and its type."""


def run_header(opened: OpenedRun, with_title: bool = True) -> None:
    """Title with question, verdict, badges and what a reader must know before any number."""
    run, document = opened.run, opened.document
    if with_title:
        st.title(plain(title(run)), anchor=False)
    if document:
        if with_title:
            st.markdown(plain(document.question))
        if document.reading.verdict:
            verdict_line(document.reading.verdict)
    badges(run)
    for words in filter(None, (facts.called(run), run.note)):
        st.markdown(plain(words))
    notes = facts.caveats(run)
    grave = facts.gaps(run) if run.status == "done" else notes
    parts = [utc(run.created_at), plain(run.environment.host), f"run {plain(run.id)}"]
    st.caption(" · ".join([*parts, *(plain(note) for note in notes if note not in grave)]))
    for note in grave:
        st.warning(plain(note))


def run_view(opened: OpenedRun) -> None:
    """Everything below the header."""
    run, document = opened.run, opened.document
    if opened.unreadable:
        title = "This version of PinScope cannot interpret the run; its raw data is below"
        st.warning(plain(opened.unreadable), title=title)
    elif not opened.rows and run.status == "done":
        st.info("Nothing was measured.", icon=":material/hourglass_empty:")
    if document:
        if isinstance(run, TraceRun):
            trace_view(run, document)
        else:
            widgets.reading_below_verdict(document.reading, document.charts)
    st.header("Method, machine and raw data", anchor=False)
    for note in facts.further_notes(run):
        st.caption(f":material/sticky_note_2: {plain(note)}")
    if document and document.method:
        with st.expander("Method", icon=":material/science:"):
            st.markdown(plain(document.method))
            help_links({"How to read it, and what to do": f"experiments/{run.experiment}"})
    with st.expander("Run and parameters", icon=":material/tune:"):
        widgets.fact_table([*facts.run_facts(run), *(facts.parameter_facts(document) if document else ())])
    with st.expander("Machine", icon=":material/memory:"):
        widgets.fact_table(facts.environment_facts(run.environment))
    label = f"Raw observations ({len(opened.rows):,})"
    with st.expander(label, icon=":material/table_rows:", key="raw", on_change="rerun") as raw:
        if raw.open:
            _raw(opened.rows)


def _raw(rows: Sequence[dict[str, Any]]) -> None:
    """The stored rows, a page at a time: a browser need not hold them all."""
    if not rows:
        st.caption("None.")
        return
    st.caption("As stored: values in SI units, the unit in the column's name. Warm-ups are kept and never counted.")
    pages = -(-len(rows) // ROWS_A_PAGE)
    page = st.pagination(pages, key="raw-page") if pages > 1 else 1
    first = (page - 1) * ROWS_A_PAGE
    page_rows = [
        {name: visible(value) if isinstance(value, str) else value for name, value in row.items()}
        for row in rows[first : first + ROWS_A_PAGE]
    ]
    frame = pd.DataFrame(page_rows, index=range(first, first + len(page_rows)))
    st.dataframe(frame, height=420, placeholder="n/a")


def download_buttons(store: Store, opened: OpenedRun) -> None:
    """One button a kind of file; a file is written when its button is pressed."""
    run = opened.run
    if opened.is_large:
        st.caption(
            f"Its {run.observations:,} observations are too many for a download from this page. On the command line: "
            f"`pinscope report {plain(run.id)} -o report.html`, `pinscope export {plain(run.id)} -o FILE`."
        )
        return
    anonymous = anonymous_choice()
    for suffix, (label, mime) in REPORTS.items():
        if opened.document and (opened.has_spans or suffix != ".perfetto.json"):
            name = f"pinscope-{run.id}{SUFFIX if anonymous else ''}{suffix}"
            content = partial(_report, opened, suffix, store if anonymous else None)
            _button(label, content, name, mime, icon=":material/download:")
    bundle_button(store, {run.id: run.observations}, "Bundle for another PinScope", f"pinscope-{run.id}", anonymous)


def _report(opened: OpenedRun, suffix: str, anonymous_from: Store | None) -> bytes:
    run_id = opened.run.id
    return render([anonymous_document(anonymous_from, run_id) if anonymous_from else opened.whole()], suffix)


def bundle_button(store: Store, runs: Mapping[str, int], label: str, file_name: str, anonymous: bool) -> None:
    """A button that packs the runs, by id with the number of their observations, into one file."""
    if (rows := sum(runs.values())) > BUNDLE_ROWS:
        st.caption(f"{rows:,} observations are more than one bundle holds ({BUNDLE_ROWS:,}): filter the list.")
        return

    def bundle() -> bytes:
        source = AnonymousStore(store) if anonymous else store
        chosen = [source.run(run_id) for run_id in runs]
        return render_bundle([(run, source.observations(run.id)) for run in chosen], source.parts)

    file_name += f"{SUFFIX if anonymous else ''}.pinscope"
    _button(label, bundle, file_name, "application/octet-stream", icon=":material/inventory_2:")


def _button(label: str, content: Callable[[], bytes], file_name: str, mime: str, *, icon: str) -> None:
    key = f"download-{label}"
    st.download_button(label, content, file_name, mime, key=key, on_click="ignore", width="stretch", icon=icon)


MESSAGE = "runs-message"
"""In the session: what the next list of runs begins with."""


def show_message() -> None:
    """Say what became of a run that stands on the page no more."""
    if message := st.session_state.pop(MESSAGE, None):
        st.success(message, icon=":material/check:")


def show_run(store: Store, run: Run, with_title: bool = True) -> None:
    """Draw the run: how far it is, or all that it came to. The browser's title is its verdict.

    ``with_title``: the page has no heading of its own.
    """
    if run.status == "running":
        if with_title:
            st.title(plain(title(run)), anchor=False)
        badges(run)
        run_progress(store, run, with_link=False, with_chart=True)
        return
    opened = open_run(store, run)
    verdict = opened.document and opened.document.reading.verdict
    st.set_page_config(page_title=f"{visible(verdict or title(run))} · PinScope")
    header, actions = st.columns([3, 1], vertical_alignment="top", gap="medium")
    with header:
        run_header(opened, with_title)
    with actions:
        with st.popover("Download", icon=":material/download:", width="stretch", type="primary"):
            download_buttons(store, opened)
        starred = store.each_run(experiment=run.experiment, lab=run.lab, baseline=True, most=NEWEST)
        compare_link([*islice((other for other in starred if other.id != run.id), 1), run], "Compare with …")
        edit_button(store, run, "edit")
        if not run.recording and st.button("Delete", icon=":material/delete:", width="stretch"):
            _confirm_delete(store, run)
    run_view(opened)


@st.dialog("Delete this run?")
def _confirm_delete(store: Store, run: Run) -> None:
    st.markdown(f"**{plain(title(run))}**")
    st.caption(f"{run.observations:,} observations · {plain(run.id)}")
    st.markdown("This cannot be undone, unless you exported the run to a bundle.")
    keep, delete = st.columns(2)
    if keep.button("Keep it", width="stretch"):
        st.rerun()
    if delete.button("Delete", type="primary", width="stretch", key="really-delete"):
        with errors_shown():
            store.delete(run.id)
            st.session_state[MESSAGE] = f"Deleted run {plain(run.id)}."
            st.query_params.clear()
            st.rerun()
