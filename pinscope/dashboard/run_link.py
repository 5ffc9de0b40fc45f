"""The way to a run's own page."""

from __future__ import annotations

import streamlit as st

from pinscope.dashboard.pages import RUNS
from pinscope.dashboard.plain import plain
from pinscope.dashboard.run_words import title
from pinscope.records.run import Run


def open_link(run: Run) -> None:
    """A link to the run, by its title."""
    st.page_link(RUNS.path, label=f"**{plain(title(run))}**", icon="", query_params={"run": run.id})
