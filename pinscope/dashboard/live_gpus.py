"""Each GPU: what pinned memory costs it, and how busy its link is."""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st

from pinscope.dashboard.fact_table import fact_table
from pinscope.dashboard.plain import plain, sentence
from pinscope.records.snapshot import DeviceFigures, Snapshot
from pinscope.report.snapshot_facts import device_facts, figure_text, link_share_words, share_words

_AMOUNTS: Mapping[str, tuple[str, str]] = {
    "page_table_bytes": ("Page tables", "What the pinned memory of its processes takes of the GPU."),
    "unattributed_bytes": ("Unattributed", "Used, but of no process: page tables, managed memory, the driver's own."),
}
_WAYS: Mapping[str, tuple[str, str]] = {
    "rx": ("Received over PCIe", "Copies to the GPU, and what it reads from host memory."),
    "tx": ("Sent over PCIe", "Copies from the GPU, and what it writes to host memory."),
}


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
        for name, (label, words) in _AMOUNTS.items():
            text = figure_text(device, name, because=False)
            _metric(label, text, share_words(device, name), words, _note(device, name))
        for way, (label, words) in _WAYS.items():
            rate = f"{way}_bytes_per_second"
            text = figure_text(device, rate, "bytes/second", because=False)
            _metric(label, text, link_share_words(device, way), words, _note(device, rate))
    fact_table(device_facts(device))


def _metric(label: str, value: str, share: str | None, words: str, note: str | None) -> None:
    st.metric(
        label,
        plain(value),
        delta=share,
        delta_color="off",
        delta_arrow="off",
        help=f"{words} {note}" if note else words,
    )


def _note(device: DeviceFigures, name: str) -> str | None:
    note = device.note(name)
    return plain(sentence(note)) if note else None
