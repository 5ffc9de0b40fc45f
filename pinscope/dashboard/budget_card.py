"""What a run will take, before it takes anything."""

from __future__ import annotations

import streamlit as st

from pinscope.dashboard.lab_choice import Place
from pinscope.dashboard.plain import plain
from pinscope.lab.budget import safe_pinned_bytes
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bytes, format_seconds


def budget_card(run: ExperimentRun, place: Place) -> None:
    """Draw the budget beside what is safe on this machine."""
    budget = run.budget
    safe = format_bytes(safe_pinned_bytes(run.environment.limits, run.lab))
    with st.container(border=True):
        st.markdown("**What it takes**")
        with st.grid(2, min_column_width=120):
            st.metric("Pinned", format_bytes(budget.pinned_bytes), help=f"At once. Safe here: up to {safe}.")
            st.metric("Other host memory", format_bytes(budget.pageable_bytes))
            st.metric("GPU memory" if place.gpu else "Model's device memory", format_bytes(budget.device_bytes))
            st.metric("Time, roughly", format_seconds(budget.seconds))
        st.caption(f"Safe to pin here: up to {safe}.{_gpu_line(place)}")
        for note in run.notes:
            st.caption(f":material/sticky_note_2: {plain(note)}")


def _gpu_line(place: Place) -> str:
    return f" Free on the GPU: {format_bytes(place.gpu.memory_free_bytes)}." if place.gpu else ""
