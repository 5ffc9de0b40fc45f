"""What a traced program did: its lines with what each costs, its time with zoom, its pinned memory, its waits."""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st

from pinscope.analysis.attached import Attached
from pinscope.dashboard import widgets
from pinscope.dashboard.plain import plain
from pinscope.experiments.trace.arithmetic import line_name
from pinscope.experiments.trace.charts_timeline import moment, timeline
from pinscope.experiments.trace.stretch import Extent, Stretch, extent, stretch_of
from pinscope.records.run import Run
from pinscope.report.document import Document

LEAST_NS = 1000
"""Of a stretch that can be looked at."""
ZOOM = 4
"""How many times a step makes it shorter or longer."""
AROUND = 10
"""How much longer it is than the copy that is looked for."""
MOST_LINES = 50
"""In the list of lines whose costliest copy can be looked for."""
Window = tuple[int, int]
"""Nanoseconds since the program's start."""


def trace_view(run: Run, document: Document) -> None:
    """Figures and findings, then the lines, the timeline, and what else the reading has."""
    tables = document.reading.tables
    widgets.reading_below_verdict(document.reading.model_copy(update={"tables": ()}), document.charts)
    for number, table in enumerate(tables[:1]):
        widgets.table_view(table, key=f"lines-{number}")
    _timeline(run, document)
    for number, table in enumerate(tables[1:]):
        widgets.table_view(table, key=f"more-{number}")


def _timeline(run: Run, document: Document) -> None:
    if not document.attached.rows:
        return
    whole = _extent(run, document.attached)
    if whole is not None:
        st.header("When it copied, computed and waited", anchor=False)
        _zoomed(run, document, whole)


@st.cache_resource(show_spinner="Reading the trace …", max_entries=8, hash_funcs={Attached: lambda _: 0})
def _extent_of(run_id: str, rows: tuple[tuple[str, int], ...], attached: Attached) -> Extent | None:
    """What never changes of a trace that has ended."""
    del run_id, rows
    return extent(attached)


def _extent(run: Run, attached: Attached) -> Extent | None:
    return _extent_of(run.id, tuple(attached.rows.items()), attached)


@st.cache_resource(show_spinner="Reading the trace …", max_entries=32, hash_funcs={Attached: lambda _: 0})
def _stretch(run_id: str, window: Window, attached: Attached, _whole: Extent) -> Stretch:
    del run_id
    return stretch_of(attached, _whole, *window)


@st.fragment
def _zoomed(run: Run, document: Document, whole: Extent) -> None:
    """The timeline of the stretch that is looked at, with the buttons that choose another."""
    key = f"window of {run.id}"
    window: Window = st.session_state.get(key, (whole.begin_ns, whole.end_ns))
    chosen = _buttons(run, document, whole, window)
    stretch = _stretch(run.id, window, document.attached, whole)
    marked = widgets.chart_with_zoom(timeline(stretch), key=f"timeline-{run.id}-{window[0]}-{window[1]}")
    if marked and not chosen:
        chosen = moment(stretch, marked[0]), moment(stretch, marked[1])
    if chosen is not None:
        st.session_state[key] = _within(whole, chosen)
        st.rerun(scope="fragment")


def _buttons(run: Run, document: Document, whole: Extent, window: Window) -> Window | None:
    """The stretch that a reader asks for, if he does."""
    begin, end = window
    length = end - begin
    middle = (begin + end) // 2
    steps: Mapping[str, tuple[str, Window, bool]] = {
        "Whole": (":material/fit_width:", (whole.begin_ns, whole.end_ns), window != (whole.begin_ns, whole.end_ns)),
        "Closer": (":material/zoom_in:", (middle - length // ZOOM // 2, middle + length // ZOOM // 2),
                   length > LEAST_NS),
        "Wider": (":material/zoom_out:", (middle - length * ZOOM // 2, middle + length * ZOOM // 2),
                  window != (whole.begin_ns, whole.end_ns)),
        "Earlier": (":material/chevron_left:", (begin - length // 2, end - length // 2), begin > whole.begin_ns),
        "Later": (":material/chevron_right:", (begin + length // 2, end + length // 2), end < whole.end_ns),
    }  # fmt: skip
    chosen = None
    with st.container(horizontal=True, gap="small", vertical_alignment="bottom"):
        for label, (icon, wanted, possible) in steps.items():
            if st.button(label, icon=icon, disabled=not possible, key=f"timeline-{label}"):
                chosen = wanted
        return chosen or _costliest(run, document, whole)


def _costliest(run: Run, document: Document, whole: Extent) -> Window | None:
    """The surroundings of a line's costliest copy."""
    sites = [row for row in document.rows if row["kind"] == "site" and row["number"] in whole.costliest]
    sites.sort(key=lambda row: -whole.costliest[row["number"]].idle_ns)
    names = {row["number"]: f"{plain(line_name(row))}, {row['source']} → {row['target']}" for row in sites[:MOST_LINES]}
    if not names:
        return None
    number = st.session_state.setdefault(f"looks of {run.id}", 0)
    chosen = st.selectbox(
        "Costliest copy of", list(names), index=None, format_func=lambda site: names[site], width=320,
        key=f"timeline-copy-{number}", placeholder="a line",
        help="Shows the copy of this line during which the GPU's compute stood idle longest.",
    )  # fmt: skip
    if chosen is None:
        return None
    st.session_state[f"looks of {run.id}"] = number + 1  # the same line can be chosen again
    copy = whole.costliest[chosen]
    around = (copy.end_ns - copy.begin_ns) * (AROUND - 1) // 2
    return copy.begin_ns - around, copy.end_ns + around


def _within(whole: Extent, wanted: Window) -> Window:
    """As near to it as the trace and a reader's eye allow."""
    begin, end = sorted(wanted)
    length = min(max(end - begin, LEAST_NS), whole.end_ns - whole.begin_ns)
    begin = min(max(begin, whole.begin_ns), whole.end_ns - length)
    return begin, begin + length
