"""Each GPU: what pinned memory costs it, and how busy its link is."""

from __future__ import annotations

import streamlit as st

from pinscope.dashboard.fact_table import fact_table
from pinscope.dashboard.figure_card import figure_card
from pinscope.dashboard.plain import plain, sentence
from pinscope.records.figure import figures
from pinscope.records.snapshot import DeviceFigures, Snapshot
from pinscope.report.snapshot_facts import device_facts, share_words

_CARDS = tuple(figure for figure in figures(DeviceFigures) if figure.page)


def gpus(snapshot: Snapshot) -> None:
    """One card a GPU, or why there is none."""
    st.header("GPUs", anchor=False)
    if not snapshot.devices:
        gap = next((one for one in snapshot.unreadable if one.what == "GPUs"), None)
        reason = plain(sentence(gap.reason)) if gap else "The driver names none."
        advice = f" {plain(gap.advice)}" if gap and gap.advice else ""
        st.info(
            f"{reason} The host's part of this page works without.{advice}",
            title="No GPU to look at", icon=":material/memory:",
        )  # fmt: skip
        return
    with st.grid(2 if len(snapshot.devices) <= 2 else "auto", min_column_width=380):
        for device in snapshot.devices:
            with st.container(border=True, height="stretch"):
                _gpu(device)


def _gpu(device: DeviceFigures) -> None:
    st.markdown(f"**GPU {device.index}: {plain(device.name)}**")
    with st.grid(2, min_column_width=150):
        for figure in _CARDS:
            figure_card(device, figure, share_words(device, figure.field))
    fact_table(device_facts(device))
