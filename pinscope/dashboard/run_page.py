"""A whole run with what can be done with it, on whichever page it stands."""

from __future__ import annotations

import streamlit as st

from pinscope.dashboard.error_lines import errors_shown
from pinscope.dashboard.plain import plain
from pinscope.dashboard.run_cards import badges, run_progress
from pinscope.dashboard.run_titles import title
from pinscope.dashboard.run_view import download_buttons, run_header, run_view
from pinscope.dashboard.state import open_run
from pinscope.records.run import Run
from pinscope.store.store import Store
from pinscope.text import visible

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
