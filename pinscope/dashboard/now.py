"""Now: who holds pinned memory on this host at this moment, and what it costs the GPUs."""

from __future__ import annotations

import streamlit as st

from pinscope.dashboard.failures import one_clear_line
from pinscope.dashboard.finding_list import finding_list
from pinscope.dashboard.live_controls import View, controls, shown_history
from pinscope.dashboard.live_events import events
from pinscope.dashboard.live_gaps import gaps
from pinscope.dashboard.live_gpus import gpus
from pinscope.dashboard.live_holders import holders
from pinscope.dashboard.live_totals import as_of, chart, totals
from pinscope.dashboard.plain import plain, sentence
from pinscope.dashboard.tabs import live
from pinscope.live.reading import read_snapshot
from pinscope.live.sampler import History
from pinscope.records.snapshot import Snapshot


def show() -> None:
    """Draw the page. Everything below the controls is drawn anew with each snapshot, from that one snapshot."""
    st.title("Now", anchor=False)
    st.markdown(
        "Who holds pinned memory on this host, and what does it cost the GPUs? "
        "The usual places to look (psutil, VmLck, smaps) read zero for CUDA's."
    )
    view = controls()
    live(_live, None if view.paused else view.interval_seconds, view)


def _live(view: View) -> None:
    with one_clear_line():
        history = shown_history(view)
        snapshot = history.latest
        if history.trouble:
            _trouble(history.trouble, snapshot is not None)
        if snapshot is None:
            if not history.trouble:
                st.info("The first snapshot is being taken.", icon=":material/hourglass_empty:")
            return
        st.caption(plain(as_of(snapshot, view)))
        _above_holders(history, snapshot, view.window_seconds)
        holders(history, snapshot, view)
        _below_holders(history, snapshot, view.window_seconds)


# Drawn for one tab, and shown to all that look at the same snapshot through the same window: Streamlit repeats what a
# cached function drew. The snapshot is returned to be kept, as a snapshot is known by its identity.
_drawn_once = st.cache_resource(max_entries=8, show_spinner=False, hash_funcs={Snapshot: id})


@_drawn_once
def _above_holders(_history: History, snapshot: Snapshot, window_seconds: float) -> Snapshot:
    totals(snapshot.host)
    chart(_history, window_seconds)
    return snapshot


@_drawn_once
def _below_holders(_history: History, snapshot: Snapshot, window_seconds: float) -> Snapshot:
    gpus(snapshot)
    if findings := read_snapshot(snapshot):
        st.header("Findings", anchor=False)
        finding_list(findings)
    events(_history, window_seconds)
    gaps(snapshot.unreadable)
    return snapshot


def _trouble(line: str, something_below: bool) -> None:
    rest = "What stands below is the last that could be read." if something_below else "It is tried again and again."
    st.warning(
        f"{plain(sentence(line))} {rest}", title="The host cannot be read at the moment", icon=":material/error:"
    )


if __name__ == "__main__":
    show()
