"""What happened to the holders within the window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

import pandas as pd
import streamlit as st

from pinscope.live.sampler import History
from pinscope.records.timeline import Event, EventKind
from pinscope.report.holder_table import COLUMNS
from pinscope.text import one_line
from pinscope.units import format_bytes

MOST_SHOWN = 200
_KINDS: Mapping[EventKind, str] = {
    "appeared": "● appeared", "grew": "▲ grew", "released": "▼ released", "ended": "○ ended",
}  # fmt: skip


def events(history: History, window_seconds: float) -> None:
    """Draw the events, the latest first."""
    st.header("Events", anchor=False)
    found = _within(history, window_seconds)
    if not found:
        st.caption(
            "Nothing happened in this window. Processes that appear, grow, give memory back or end are told here."
        )
        return
    shown = found[: -MOST_SHOWN - 1 : -1]
    if len(found) > len(shown):
        st.caption(f"The last {len(shown)} of {len(found):,}")
    data = pd.DataFrame(
        {
            "Time (UTC)": [one.at.replace(tzinfo=None) for one in shown],
            "Event": [_KINDS[one.kind] for one in shown],
            "Process": [one_line(one.name) for one in shown],
            "PID": [one.pid for one in shown],
            "Memory": [COLUMNS[f"{one.what}_bytes"].label for one in shown],
            "Change": [one.change_bytes for one in shown],
            "Holds now": [one.total_bytes for one in shown],
        }
    )
    st.dataframe(
        data.style.format({"Change": _signed, "Holds now": format_bytes}),  # type: ignore[dict-item]
        key="now-events", hide_index=True, alt="What happened to the holders",
        column_config={
            "Time (UTC)": st.column_config.DatetimeColumn("Time (UTC)", format="HH:mm:ss"),
            "PID": st.column_config.NumberColumn("PID", format="%d"),
        },
    )  # fmt: skip


def _within(history: History, window_seconds: float) -> Sequence[Event]:
    if history.latest is None:
        return ()
    begin = history.latest.taken_at - timedelta(seconds=window_seconds)
    return [one for one in history.events if one.at >= begin]


def _signed(change: int) -> str:
    return f"{'+' if change > 0 else '−'} {format_bytes(abs(change))}"
