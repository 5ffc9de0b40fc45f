"""What there is to know about pinned memory, in a few recorded runs: for those whose machine has no GPU."""

from __future__ import annotations

import streamlit as st

from pinscope.dashboard.answers import TOUR_NOTE, tour_heading, tour_runs
from pinscope.dashboard.plain import plain
from pinscope.dashboard.run_cards import run_answer
from pinscope.dashboard.run_titles import experiment_title
from pinscope.experiments.registry import find_reader
from pinscope.store.store import Store


def tour(store: Store) -> None:
    """One step at a time: a question, its answer and the chart that shows it."""
    there = tour_runs()
    steps = list(there)
    if not steps:
        return
    st.header(tour_heading(there), anchor=False)
    st.caption(TOUR_NOTE)
    name = st.segmented_control(
        "Step",
        steps,
        default=steps[0],
        required=True,
        key="step",
        label_visibility="collapsed",
        format_func=lambda name: f"{steps.index(name) + 1} · {experiment_title(name)}",
    )
    run = there[name or steps[0]]
    with st.container(border=True, key="tour"):
        st.markdown(plain(find_reader(run.experiment).kind.question))
        run_answer(store, run)
