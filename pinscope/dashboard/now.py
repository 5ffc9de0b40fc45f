"""Now: who holds pinned memory on this host at this moment, and what it costs the GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

import pandas as pd
import streamlit as st

from pinscope.dashboard import widgets
from pinscope.dashboard.live_controls import View, controls, shown_history
from pinscope.dashboard.live_holders import holders
from pinscope.dashboard.plain import plain, sentence
from pinscope.dashboard.tabs import live, slowed
from pinscope.live.charts import drawing, frame
from pinscope.live.reading import read_snapshot
from pinscope.live.sampler import History
from pinscope.live.verdict import snapshot_verdict
from pinscope.records.figure import figures
from pinscope.records.snapshot import DeviceFigures, HostTotals, Snapshot, Unreadable
from pinscope.records.timeline import EventKind
from pinscope.report.holder_table import COLUMNS
from pinscope.report.snapshot_facts import device_facts, host_facts, moment_text
from pinscope.text import one_line
from pinscope.units import format_bytes, format_seconds

MOST_EVENTS = 200
_HOST, _GPU = (tuple(figure for figure in figures(kind) if figure.page) for kind in (HostTotals, DeviceFigures))
_EVENTS: Mapping[EventKind, str] = {
    "appeared": "● appeared", "grew": "▲ grew", "released": "▼ released", "ended": "○ ended",
}  # fmt: skip


def show() -> None:
    """Draw the page. Everything below the controls is drawn anew with each snapshot, from that one snapshot."""
    st.title("Now", anchor=False)
    st.markdown(
        "Who holds pinned memory on this host, and what does it cost the GPUs? "
        "The usual tools (psutil, VmLck, smaps) show zero for memory that CUDA pinned."
    )
    view = controls()
    live(_live, None if view.paused else view.interval_seconds, view)


def _live(view: View) -> None:
    with widgets.errors_shown():
        history = shown_history(view)
        snapshot = history.latest
        if history.trouble:
            rest = "Below is the last reading that succeeded." if snapshot else "PinScope keeps trying."
            line = f"{plain(sentence(history.trouble))} {rest}"
            st.warning(line, title="The host cannot be read at the moment", icon=":material/error:")
        elif snapshot is None:
            st.info("The first snapshot is being taken.", icon=":material/hourglass_empty:")
        if snapshot is not None:
            st.caption(plain(_as_of(snapshot, view)))
            _above_holders(history, snapshot, view.window_seconds)
            holders(history, snapshot, view)
            _below_holders(history, snapshot, view.window_seconds)


def _as_of(snapshot: Snapshot, view: View) -> str:
    """When and how the snapshot was taken."""
    state = "Paused. " if view.paused else ""
    slow = None if view.paused else slowed(view.interval_seconds)
    taken = f"As of {moment_text(snapshot.taken_at)} · took {format_seconds(snapshot.cpu_seconds)} of CPU time"
    return f"{state}{taken}" + (f" · {slow}" if slow else "")


# Drawn for one tab, and shown to all that look at the same snapshot through the same window: Streamlit repeats what a
# cached function drew. The snapshot is returned to be kept, as a snapshot is known by its identity.
_drawn_once = st.cache_resource(max_entries=8, show_spinner=False, hash_funcs={Snapshot: id})


@_drawn_once
def _above_holders(_history: History, snapshot: Snapshot, window_seconds: float) -> Snapshot:
    st.subheader(plain(snapshot_verdict(snapshot)), anchor=False)
    host = snapshot.host
    with st.grid(len(_HOST), min_column_width=150):
        for figure in _HOST:
            widgets.figure_card(host, figure, border=True)
    with st.expander("More of the host's memory", icon=":material/memory:", key="now-host"):
        widgets.fact_table(host_facts(host))
    _chart(_history, window_seconds)
    return snapshot


@_drawn_once
def _below_holders(_history: History, snapshot: Snapshot, window_seconds: float) -> Snapshot:
    if snapshot.devices:
        widgets.gpu_cards(snapshot.devices, _gpu)
    else:
        _no_gpu(snapshot)
    if findings := read_snapshot(snapshot):
        st.header("Findings", anchor=False)
        widgets.finding_list(findings)
    _events(_history, snapshot, window_seconds)
    if snapshot.unreadable:
        st.header("What cannot be read here", anchor=False)
        widgets.cards(snapshot.unreadable, _gap)
    return snapshot


def _chart(history: History, window_seconds: float) -> None:
    """The totals through the window; zoom and picked series stay from one drawing to the next."""
    with st.container(border=True):
        st.markdown("**Pinned and locked memory**")
        data = frame(history.samples, window_seconds, history.interval_seconds)
        alt = "Pinned and locked memory of this host over the chosen window"
        st.vega_lite_chart(spec=drawing(data), key="now-totals", width="stretch", alt=alt)
        st.caption(
            "Time in UTC. Ctrl and the wheel (or a pinch) zoom, dragging moves, a double click goes back to now; "
            "a click on a name in the legend picks it out. A gap: nothing was sampled then."
        )


def _gpu(device: DeviceFigures) -> None:
    st.markdown(f"**GPU {device.index}: {plain(device.name)}**")
    with st.grid(2, min_column_width=150):
        for figure in _GPU:
            widgets.figure_card(device, figure)
    widgets.fact_table(device_facts(device))


def _no_gpu(snapshot: Snapshot) -> None:
    st.header("GPUs", anchor=False)
    gap = next((gap for gap in snapshot.unreadable if gap.what == "GPUs"), None)
    reason = plain(sentence(gap.reason)) if gap else "The driver reports no GPU."
    advice = f" {plain(gap.advice)}" if gap and gap.advice else ""
    line = f"{reason} The rest of this page works without a GPU.{advice}"
    st.info(line, title="No GPU to look at", icon=":material/memory:")


def _events(history: History, snapshot: Snapshot, window_seconds: float) -> None:
    """What happened to the holders within the window, the latest first."""
    st.header("Events", anchor=False)
    begin = snapshot.taken_at - timedelta(seconds=window_seconds)
    found = [event for event in reversed(history.events) if event.at >= begin]
    if not found:
        st.caption(
            "Nothing happened in this window. Processes that appear, grow, give memory back or end are listed here."
        )
        return
    if len(found) > MOST_EVENTS:
        st.caption(f"The last {MOST_EVENTS} of {len(found):,}")
    rows = [
        (event.at.replace(tzinfo=None), _EVENTS[event.kind], one_line(event.name), event.pid,
         COLUMNS[f"{event.what}_bytes"].label, event.change_bytes, event.total_bytes)
        for event in found[:MOST_EVENTS]
    ]  # fmt: skip
    columns = ["Time (UTC)", "Event", "Process", "PID", "Memory", "Change", "Holds now"]
    data = pd.DataFrame(rows, columns=columns)
    st.dataframe(
        data.style.format({"Change": _signed, "Holds now": format_bytes}),  # type: ignore[dict-item]
        key="now-events", hide_index=True, alt="What happened to the holders",
        column_config={
            "Time (UTC)": st.column_config.DatetimeColumn("Time (UTC)", format="HH:mm:ss"),
            "PID": st.column_config.NumberColumn("PID", format="%d"),
        },
    )  # fmt: skip


def _signed(change: int) -> str:
    return f"{'+' if change > 0 else '−'} {format_bytes(abs(change))}"


def _gap(gap: Unreadable) -> None:
    st.markdown(f":gray[:material/visibility_off:] **{plain(gap.what)}**")
    if gap.hides_holders:
        st.badge("may hide holders", color="orange")
    widgets.reason_and_advice(gap.reason, gap.advice)


if __name__ == "__main__":
    show()
