"""What a traced program did: its lines with what each costs, its time with zoom, its pinned memory, its waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import streamlit as st

from pinscope.analysis.read_rows import Attached, Row
from pinscope.dashboard import state, widgets
from pinscope.dashboard.state import PAGE_EVENTS
from pinscope.dashboard.widgets import show_error
from pinscope.errors import PinScopeError
from pinscope.experiments.registry import checked_rows
from pinscope.records.run import Run
from pinscope.report.facts import Document, answer_tables, further_tables
from pinscope.report.write import render
from pinscope.store.anonymous import SUFFIX
from pinscope.store.store import Store
from pinscope.tracing.sites import seen_in
from pinscope.tracing.stretch import Extent, Stretch, extent, stretch_of, within
from pinscope.tracing.trace.answer import LINES, PEAK, SIZES, TIME
from pinscope.tracing.trace.charts import TITLE, moment, timeline
from pinscope.tracing.trace.what_if import what_if_command

LEAST_NS = 1000
"""Of a stretch that can be looked at."""
ZOOM = 4
"""How many times a step makes it shorter or longer."""
Window = tuple[int, int]
"""Nanoseconds since the program's start."""


def trace_view(run: Run, document: Document) -> None:
    """The tables of the answer with a command that proves it, then findings, the timeline, and what else the reading
    has."""
    reading = document.reading
    tables = {table.title: table for table in answer_tables(reading)}
    widgets.table_list([table for title, table in tables.items() if title not in (TIME, LINES, PEAK, SIZES)], "first")
    if TIME in tables:
        widgets.bar_cards(tables[TIME])
    widgets.table_list([table for title, table in tables.items() if title == LINES], "lines")
    seen = seen_in(run, checked_rows(run.experiment, document.rows))
    if (command := what_if_command(run, seen)) is not None:
        st.markdown("What pinning the first of these lines really saves is measured by a second run, without an edit:")
        st.code(command, language=None, wrap_lines=True)
    with st.grid(2, min_column_width=340):
        for title in (PEAK, SIZES):
            if title in tables:
                with st.container():
                    widgets.table_list([tables[title]], title)
    without_tables = reading.model_copy(update={"tables": answer_tables(reading)})
    widgets.reading_below_verdict(without_tables, document.charts)
    _timeline(run, document)
    widgets.table_list(further_tables(reading), "more")


def _timeline(run: Run, document: Document) -> None:
    if not document.attached.rows:
        return
    try:
        whole = _extent_of(run.id, tuple(document.attached.rows.items()), document.attached, document.rows)
    except PinScopeError as error:  # of a bundle from elsewhere, or of a database that fails
        show_error(error)
        return
    if whole is not None:
        st.header(TITLE, anchor=False)
        _zoomed(run, document, whole)


@st.cache_resource(show_spinner="Reading the trace …", max_entries=8, hash_funcs={Attached: lambda _: 0})
def _extent_of(
    run_id: str, counts: tuple[tuple[str, int], ...], attached: Attached, _rows: Sequence[Row]
) -> Extent | None:
    """What never changes of a trace that has ended."""
    del run_id, counts
    return extent(attached, _rows)


@st.cache_resource(show_spinner="Reading the trace …", max_entries=32, hash_funcs={Attached: lambda _: 0})
def _stretch(run_id: str, window: Window, attached: Attached, _whole: Extent) -> Stretch:
    del run_id
    return stretch_of(attached, _whole, *window)


@st.fragment
def _zoomed(run: Run, document: Document, whole: Extent) -> None:
    """The timeline of the stretch that is looked at, with what chooses another."""
    window: Window = st.session_state.get(_key(run), (whole.begin_ns, whole.end_ns))
    stretch = _stretch(run.id, window, document.attached, whole)
    with st.container(horizontal=True, gap="small", vertical_alignment="bottom"):
        for label, (icon, wanted, possible) in _steps(whole, stretch).items():
            st.button(
                label,
                icon=icon,
                disabled=not possible,
                key=f"timeline-{label}",
                on_click=_look,
                args=(run, whole, wanted),
            )
    widgets.chart_with_zoom(
        timeline(stretch),
        key=f"timeline-{run.id}-{window[0]}-{window[1]}",
        marked=lambda begin, end: _look(run, whole, (moment(stretch, begin), moment(stretch, end))),
    )
    if 0 < stretch.events <= PAGE_EVENTS:
        anonymous_from, in_name = (state.store(), SUFFIX) if state.is_anonymous() else (None, "")
        st.download_button(
            "This stretch for Perfetto",
            partial(_file, document, whole, window, anonymous_from),
            f"pinscope-{run.id}{in_name}-{window[0] // 1000}us.perfetto.json",
            "application/json",
            on_click="ignore",
            icon=":material/download:",
            key="timeline-perfetto",
        )


def _file(document: Document, whole: Extent, window: Window, anonymous_from: Store | None) -> bytes:
    """This stretch for Perfetto."""
    if anonymous_from:
        document = state.anonymous_document(anonymous_from, document.run.id)
    return render([replace(document, attached=within(document.attached, whole, *window))], ".perfetto.json")


def _key(run: Run) -> str:
    return f"window of {run.id}"


def _look(run: Run, whole: Extent, wanted: Window) -> None:
    """Show this stretch, or what is nearest to it of the trace and not too short to be seen."""
    begin, end = sorted(wanted)
    length = min(max(end - begin, LEAST_NS), whole.end_ns - whole.begin_ns)
    begin = min(max(begin, whole.begin_ns), whole.end_ns - length)
    st.session_state[_key(run)] = (begin, begin + length)


def _steps(whole: Extent, stretch: Stretch) -> Mapping[str, tuple[str, Window, bool]]:
    """Name of a button → its sign, where it leads, and whether there is anything. Closer leads to where most of what
    ran did: in the middle of the time there may be nothing, as a program starts for long and then runs a short loop."""
    begin, end = stretch.begin_ns, stretch.end_ns
    length, middle, all_of_it = end - begin, (begin + end) // 2, (whole.begin_ns, whole.end_ns)
    first, last = stretch.heart_ns
    near, heart = min(length // ZOOM, last - first) // 2, (first + last) // 2
    far, is_part = length * ZOOM // 2, (begin, end) != all_of_it
    return {
        "Whole": (":material/fit_width:", all_of_it, is_part),
        "Closer": (":material/zoom_in:", (heart - near, heart + near), length > LEAST_NS),
        "Wider": (":material/zoom_out:", (middle - far, middle + far), is_part),
        "Earlier": (":material/chevron_left:", (begin - length // 2, end - length // 2), begin > whole.begin_ns),
        "Later": (":material/chevron_right:", (begin + length // 2, end + length // 2), end < whole.end_ns),
    }
