"""What there is to know about pinned memory, in a few recorded runs: for those whose machine has no GPU."""

from __future__ import annotations

import streamlit as st

from pinscope.dashboard.plain import plain
from pinscope.dashboard.run_cards import experiment_title, run_answer
from pinscope.experiments.registry import find_reader
from pinscope.records.run import Run
from pinscope.store.recordings import recorded_runs
from pinscope.store.store import Store

STEPS = ("bandwidth", "overlap", "pinning_strategy", "page_tables", "timeline")
"""What pinning brings, what it takes to use it, how to pin, what it costs, and who holds it."""


def newest_recordings() -> dict[str, Run]:
    """Experiment → its newest recording."""
    return {run.experiment: run for run in reversed(recorded_runs())}


def tour(store: Store) -> None:
    """One step at a time: a question, its answer and the chart that shows it."""
    there = newest_recordings()
    steps = [name for name in STEPS if name in there]
    if not steps:
        return
    st.header(f"Pinned memory in {len(steps)} steps", anchor=False)
    st.caption("Each answer comes from a run that ships with PinScope. It was measured on the machine that it names.")
    name = st.segmented_control(
        "Step", steps, default=steps[0], required=True, key="step", label_visibility="collapsed",
        format_func=lambda name: f"{steps.index(name) + 1} · {experiment_title(name)}",
    )  # fmt: skip
    run = there[name or steps[0]]
    with st.container(border=True, key="tour"):
        st.markdown(plain(find_reader(run.experiment).kind.question))
        run_answer(store, run)
