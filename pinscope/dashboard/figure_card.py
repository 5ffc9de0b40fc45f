"""One figure of the live view as a card: its value, what share of a whole it is, and what it means."""

from __future__ import annotations

import streamlit as st

from pinscope.dashboard.plain import plain, sentence
from pinscope.records.bound import Estimated
from pinscope.records.figure import Figure
from pinscope.report.snapshot_facts import figure_text


def figure_card(record: Estimated, figure: Figure, share: str | None, *, border: bool = False) -> None:
    """Draw it; why it is missing or no more than an estimate stands in its help."""
    note = record.note(figure.field)
    st.metric(
        figure.label, plain(figure_text(record, figure.field, figure.unit, because=False)), delta=share,
        delta_color="off", delta_arrow="off", border=border, height="stretch" if border else "content",
        help=f"{figure.help} {plain(sentence(note))}" if note else figure.help,
    )  # fmt: skip
