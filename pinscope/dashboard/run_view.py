"""One run in full: what came out, why it can be trusted, and everything behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
import streamlit as st

from pinscope.dashboard.chart_view import chart_view
from pinscope.dashboard.fact_table import fact_table
from pinscope.dashboard.finding_list import finding_list, headline
from pinscope.dashboard.manual_pages import help_links
from pinscope.dashboard.opened_run import OpenedRun
from pinscope.dashboard.plain import plain
from pinscope.dashboard.run_words import badges, started, title
from pinscope.dashboard.table_view import table_view
from pinscope.records.run import HOST_MODEL_NOTE, Run
from pinscope.report.document import Document
from pinscope.report.facts import caveats, environment_facts, parameter_facts, run_facts
from pinscope.text import visible

ROWS_A_PAGE = 500


def run_header(run: Run) -> None:
    """Title, badges and what a reader must know before any number."""
    st.title(plain(title(run)), anchor=False)
    badges(run)
    st.caption(f"{started(run)} · {plain(run.environment.host)} · run {plain(run.id)}")
    if run.lab == "host":
        st.info(HOST_MODEL_NOTE, icon=":material/info:")
    show = st.info if run.status == "done" else st.warning
    for caveat in caveats(run):
        show(plain(caveat))
    for note in run.notes:
        st.caption(f":material/sticky_note_2: {plain(note)}")


def run_view(opened: OpenedRun) -> None:
    """Everything below the header."""
    if opened.unreadable:
        st.warning(
            plain(opened.unreadable), title="This version of PinScope cannot interpret the run; its raw data is below"
        )
    elif not opened.rows and opened.run.status == "done":
        st.info("Nothing was measured.", icon=":material/hourglass_empty:")
    if opened.document:
        st.markdown(f"##### {plain(opened.document.question)}")
        _results(opened.document)
    _background(opened)


def _results(document: Document) -> None:
    reading = document.reading
    if reading.headline:
        headline(reading.headline)
    if reading.findings:
        st.header("Findings", anchor=False)
        finding_list(reading.findings)
    if document.charts:
        st.header("Charts", anchor=False)
        grid = st.grid(2, min_column_width=480)
        for chart in document.charts:
            with grid:
                chart_view(chart, key=f"chart-{chart.key}")
    if reading.tables:
        st.header("Tables", anchor=False)
        for number, table in enumerate(reading.tables):
            table_view(table, key=f"table-{number}")


def _background(opened: OpenedRun) -> None:
    run = opened.run
    st.header("Behind it", anchor=False)
    if opened.document:
        with st.expander("Method", icon=":material/science:"):
            st.markdown(plain(opened.document.method))
            help_links({"How to read it, and what to do": f"experiments/{run.experiment}"})
    with st.expander("Run and parameters", icon=":material/tune:"):
        fact_table([*run_facts(run), *(parameter_facts(opened.document) if opened.document else ())])
    with st.expander("Machine", icon=":material/memory:"):
        fact_table(environment_facts(run.environment))
    with st.expander(
        f"Raw observations ({len(opened.rows):,})", icon=":material/table_rows:", key="raw", on_change="rerun"
    ) as raw:
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
    shown = [
        {name: visible(value) if isinstance(value, str) else value for name, value in row.items()}
        for row in rows[first : first + ROWS_A_PAGE]
    ]
    frame = pd.DataFrame(shown, index=range(first, first + len(shown)))
    st.dataframe(frame, height=420, placeholder="n/a")
