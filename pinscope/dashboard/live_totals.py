"""The host's pinned memory: figures now, and a chart of how they came about."""

from __future__ import annotations

import streamlit as st

from pinscope.dashboard.fact_table import fact_table
from pinscope.dashboard.figure_card import figure_card
from pinscope.dashboard.live_controls import View
from pinscope.dashboard.tabs import slowed
from pinscope.live.charts import drawing, frame
from pinscope.live.sampler import History
from pinscope.records.figure import figures
from pinscope.records.snapshot import HostTotals, Snapshot
from pinscope.report.snapshot_facts import host_facts, moment_text, share_of_memory
from pinscope.units import format_seconds

FIGURES = tuple(figure for figure in figures(HostTotals) if figure.page)


def totals(host: HostTotals) -> None:
    """Draw the figures of the moment."""
    with st.grid(len(FIGURES), min_column_width=150):
        for figure in FIGURES:
            figure_card(host, figure, share_of_memory(host, figure.field), border=True)
    with st.expander("More of the host's memory", icon=":material/memory:", key="now-host"):
        fact_table(host_facts(host))


def chart(history: History, window_seconds: float) -> None:
    """Draw the totals through the window; zoom and picked series stay from one drawing to the next."""
    with st.container(border=True):
        st.markdown("**Pinned and locked memory**")
        data = frame(history.samples, window_seconds, history.interval_seconds)
        st.vega_lite_chart(
            spec=drawing(data), key="now-totals", width="stretch",
            alt="Pinned and locked memory of this host over the chosen window",
        )  # fmt: skip
        st.caption(
            "Time in UTC. Ctrl and the wheel (or a pinch) zoom, dragging moves, a double click goes back to now; "
            "a click on a name in the legend picks it out. Left open: nobody looked then."
        )


def as_of(snapshot: Snapshot, view: View) -> str:
    """When and how the snapshot was taken."""
    state = "Paused. " if view.paused else ""
    slow = None if view.paused else slowed(view.interval_seconds)
    taken = f"As of {moment_text(snapshot.taken_at)} · took {format_seconds(snapshot.cpu_seconds)} of CPU"
    return f"{state}{taken}" + (f" · {slow}" if slow else "")
