"""How a run is named and dated on every page."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC
from typing import Literal

import streamlit as st

from pinscope.errors import UnknownName
from pinscope.experiments.registry import find_reader
from pinscope.records.run import LAB_TITLES, Run, Status
from pinscope.report.facts import size_word

Colour = Literal["red", "orange", "blue", "green", "gray"]

_STATUS: Mapping[Status, tuple[Colour, str]] = {
    "running": ("blue", ":material/progress_activity:"),
    "done": ("green", ":material/check:"),
    "failed": ("red", ":material/error:"),
    "cancelled": ("gray", ":material/block:"),
    "interrupted": ("orange", ":material/power_off:"),
}


def experiment_title(name: str) -> str:
    """The experiment's title, or its bare name if this version does not know it."""
    try:
        return find_reader(name).kind.title
    except UnknownName:
        return name


def where(run: Run) -> str:
    """The GPU's name, or that it was the host model or a live view."""
    return run.gpu.name if run.gpu else LAB_TITLES[run.lab]


def title(run: Run) -> str:
    """``Bandwidth · NVIDIA H200``."""
    return f"{experiment_title(run.experiment)} · {where(run)}"


def started(run: Run) -> str:
    """``2026-11-21 03:15 UTC``."""
    return f"{run.created_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def badges(run: Run) -> None:
    """Status, size and origin, side by side."""
    with st.container(horizontal=True, gap="xsmall"):
        colour, icon = _STATUS[run.status]
        st.badge(run.status, color=colour, icon=icon)
        if size := size_word(run):
            st.badge(size, color="gray")
        if run.lab == "host":
            st.badge(LAB_TITLES["host"], color="violet")
        if run.recording:
            st.badge(
                "recording",
                color="yellow",
                icon=":material/inventory_2:",
                help="Ships with PinScope; measured on another machine.",
            )
