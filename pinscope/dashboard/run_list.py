"""Runs, one a card, each a link to its own page."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from pinscope.dashboard.plain import plain
from pinscope.dashboard.run_link import open_link
from pinscope.dashboard.run_progress import run_progress
from pinscope.dashboard.run_words import badges, started
from pinscope.records.run import Run
from pinscope.store.store import Store


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
                host, run_id = plain(run.environment.host), plain(run.id)
                st.caption(f"{started(run)} · {run.observations:,} observations · {host} · {run_id}")
            with right:
                badges(run)
