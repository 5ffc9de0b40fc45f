"""Runs, one a card, each a link to its own page."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from pinscope.dashboard.pages import RUNS
from pinscope.dashboard.plain import plain
from pinscope.dashboard.run_words import badges, started, title
from pinscope.records.run import Run


def run_list(runs: Sequence[Run]) -> None:
    """Draw the runs in the order given."""
    for run in runs:
        with st.container(border=True, key=f"run-{run.id}", gap="xsmall"):
            left, right = st.columns([3, 2], vertical_alignment="center")
            with left:
                open_link(run, plain(title(run)))
                host, run_id = plain(run.environment.host), plain(run.id)
                st.caption(f"{started(run)} · {run.observations:,} observations · {host} · {run_id}")
            with right:
                badges(run)


def open_link(run: Run, label: str) -> None:
    """A link to the run; ``label`` is Markdown already."""
    st.page_link(RUNS.path, label=label, icon="", query_params={"run": run.id})
