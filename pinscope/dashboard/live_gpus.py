"""Each GPU: what pinned memory costs it, and how busy its link is."""

from __future__ import annotations

import streamlit as st

from pinscope.dashboard.fact_table import fact_table
from pinscope.dashboard.plain import plain, sentence
from pinscope.records.snapshot import DeviceFigures, Snapshot
from pinscope.report.snapshot_facts import device_facts, figure_text, rate_text, share_words

_LABELS = {"rx": "Received over the link", "tx": "Sent over the link"}


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
        _metric(
            "Page tables", figure_text(device, "page_table_bytes", because=False),
            share_words(device, "page_table_bytes"), _note(device, "page_table_bytes"),
        )  # fmt: skip
        _metric(
            "Of no process", figure_text(device, "unattributed_bytes", because=False),
            share_words(device, "unattributed_bytes"), _note(device, "unattributed_bytes"),
        )  # fmt: skip
        for way, label in _LABELS.items():
            share = figure_text(device, f"{way}_share", "share", because=False)
            _metric(
                label, rate_text(device, way), None if share == "n/a" else f"{share} of the link",
                _note(device, f"{way}_bytes_per_second"),
            )  # fmt: skip
    fact_table(device_facts(device))


def _metric(label: str, value: str, share: str | None, note: str | None) -> None:
    st.metric(label, plain(value), delta=share, delta_color="off", delta_arrow="off", help=note)


def _note(device: DeviceFigures, name: str) -> str | None:
    note = device.missing.get(name) or device.estimates.get(name)
    return plain(sentence(note)) if note else None
