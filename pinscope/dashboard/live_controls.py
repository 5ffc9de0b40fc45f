"""What a reader sets on the page Now: pause, pace, window; and the snapshot to take away."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import streamlit as st

from pinscope.dashboard.live_watch import watch
from pinscope.live.reading import read_snapshot
from pinscope.live.sampler import History
from pinscope.report.json_report import render_snapshot

INTERVALS = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds."""
WINDOWS: Mapping[float, str] = {60.0: "1 minute", 300.0: "5 minutes", 900.0: "15 minutes", 3600.0: "1 hour"}
_SHOWN = "now-shown"
_INTERVAL = "now-interval"


@dataclass(frozen=True)
class View:
    """What to show.

    Attributes:
        paused: the page stands still; never before it has a snapshot to stand at.
        interval_seconds: from one snapshot, and one drawing, to the next.
        window_seconds: how far back.
    """

    paused: bool
    interval_seconds: float
    window_seconds: float


def controls() -> View:
    """Draw them; what they are set to."""
    history = watch().look()
    interval = history.interval_seconds
    st.session_state[_INTERVAL] = interval  # another tab may have set it
    if not _shown().has_snapshot:
        _shown().history = history
    with st.container(horizontal=True, gap="medium", vertical_alignment="bottom"):
        st.selectbox(
            "New snapshot every", sorted({*INTERVALS, interval}), key=_INTERVAL, width=150,
            format_func=lambda seconds: f"{seconds:g} s", on_change=_set_interval,
            help="For all open tabs: they share one sampler. It stops while none shows live figures.",
        )  # fmt: skip
        window = st.selectbox(
            "Time window", list(WINDOWS), index=1, key="now-window", persist_state="session",
            format_func=lambda seconds: WINDOWS[seconds], width=150,
            help="How far back the chart, the events and the marks of growing processes reach.",
        )  # fmt: skip
        with st.container(horizontal=True, gap="medium", vertical_alignment="center", width="content"):
            paused = st.toggle(
                "Pause", key="now-pause", help="Freezes this tab. Filter, details and download still work."
            )
            st.download_button(
                "Snapshot", _shown().as_file, "pinscope-snapshot.json", "application/json", key="now-download",
                on_click="ignore", icon=":material/download:", disabled=not _shown().has_snapshot,
                help="The snapshot on this page as JSON, as 'pinscope live --once --json' prints it.",
            )  # fmt: skip
    return View(paused and _shown().has_snapshot, interval, window)


def shown_history(view: View) -> History:
    """What is known now; on a page that stands still, what it stands at."""
    shown = _shown()
    if not view.paused or shown.history is None:
        first = not shown.has_snapshot
        shown.history = watch().look()
        if first and shown.has_snapshot:
            st.rerun()  # there is something to download now
    if not view.paused and shown.history.interval_seconds != view.interval_seconds:
        st.rerun()  # another tab changed the pace
    return shown.history


@dataclass
class _Shown:
    """What this tab shows; the download button reads it when it is pressed, outside of the page's script."""

    history: History | None = None

    @property
    def has_snapshot(self) -> bool:
        return self.history is not None and self.history.latest is not None

    def as_file(self) -> bytes:
        """The snapshot as JSON."""
        latest = self.history.latest if self.history else None
        return render_snapshot(latest, read_snapshot(latest)) if latest else b""


def _shown() -> _Shown:
    shown: _Shown = st.session_state.setdefault(_SHOWN, _Shown())
    return shown


def _set_interval() -> None:
    watch().set_interval(st.session_state[_INTERVAL])
