"""Who holds pinned memory: a table that is sorted by a click on a column, and all that is known of one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

import pandas as pd
import streamlit as st
from pandas.io.formats.style import Styler

from pinscope.analysis.rules.growth import STEADY_GROWTH
from pinscope.dashboard.live_controls import View
from pinscope.dashboard.plain import plain
from pinscope.dashboard.widgets import fact_columns
from pinscope.live.changes import growing
from pinscope.live.charts import trends, within
from pinscope.live.sampler import History
from pinscope.records.figure import Figure
from pinscope.records.snapshot import Holder, Snapshot
from pinscope.report.holder_table import COLUMNS, HolderRow, gpus_text, holder_rows, matching, signed_text
from pinscope.report.snapshot_facts import holder_facts

_TABLE = "now-holders"
_ROWS = "now-holder-rows"
_CHOSEN = "now-chosen-holder"
_MARK = "▲"


def holders(history: History, snapshot: Snapshot, view: View) -> None:
    """Draw the table, most bytes first, and the details of the chosen process."""
    st.header("Holders", anchor=False)
    if not snapshot.holders:
        st.info(
            "Processes with pinned or locked memory, or with a CUDA context, appear here as soon as there are any.",
            title="No process holds pinned memory now", icon=":material/check_circle:",
        )  # fmt: skip
        return
    grow = growing(within(history.samples, view.window_seconds))
    shown = _filtered(snapshot.holders, grow)
    if shown:
        rows = holder_rows(shown, grow)
        _table(rows, history, view, with_probe=snapshot.probe is not None)
    else:
        st.info("No holder fits this filter.", icon=":material/filter_alt_off:")
    _details(snapshot.holders)


def _filtered(every: Sequence[Holder], grow: frozenset[int]) -> list[Holder]:
    with st.container(horizontal=True, gap="medium", vertical_alignment="bottom"):
        words = st.text_input(
            "Filter", key="now-filter", persist_state="session", icon=":material/search:", width=320,
            placeholder="Name, pid, user, container or command",
        )  # fmt: skip
        only = st.toggle(
            "Only growing", key="now-only-growing", persist_state="session",
            help=f"Processes whose pinned or locked memory grew steadily through the window: {STEADY_GROWTH}.",
        )  # fmt: skip
    shown = [one for one in matching(every, words) if one.pid in grow or not only]
    st.caption(f"{len(shown):,} of {len(every):,} holders" + (f" · {len(grow)} growing" if grow else ""))
    return shown


def _table(rows: Sequence[HolderRow], history: History, view: View, with_probe: bool) -> None:
    """The chosen process stays chosen when others overtake it: rows are known by their process, not their place."""
    keys = [(row.pid, row.started_at) for row in rows]
    st.session_state[_ROWS] = keys
    chosen = st.session_state.get(_CHOSEN)
    st.session_state[_TABLE] = {"selection": {"rows": [keys.index(chosen)] if chosen in keys else []}}
    columns = {name: figure for name, figure in COLUMNS.items() if figure.page and (with_probe or not figure.probed)}
    st.dataframe(
        _styled(rows, columns, trends(history.samples, view.window_seconds)), key=_TABLE, hide_index=True,
        placeholder="n/a", on_select=_choose, selection_mode="single-row", column_config=_config(columns),
        alt="Processes that hold pinned or locked memory",
    )  # fmt: skip


def _choose() -> None:
    picked = st.session_state[_TABLE]["selection"]["rows"]
    keys = st.session_state[_ROWS]
    st.session_state[_CHOSEN] = keys[picked[0]] if picked and picked[0] < len(keys) else None


def _styled(
    rows: Sequence[HolderRow], columns: Mapping[str, Figure], curves: Mapping[tuple[int, object], list[float]]
) -> Styler:
    """Numbers, so that they sort as such, that read with their units."""
    data: dict[str, Any] = {
        "Process": [row.name for row in rows],
        "Grows": [_MARK if row.growing else "" for row in rows],
        "PID": [row.pid for row in rows],
    }
    for name, figure in columns.items():
        kind: Literal["Int64", "Float64"] = "Int64" if figure.unit in ("bytes", "count") else "Float64"
        data[figure.label] = pd.array([row.amounts[name] for row in rows], dtype=kind)
    data |= {
        "GPUs": [gpus_text(row.gpus) for row in rows],
        "Trend": [curves.get((row.pid, row.started_at), []) for row in rows],
        "User": [row.user for row in rows],
        "Container": [row.container for row in rows],
        "Started (UTC)": [row.started_at.replace(tzinfo=None) if row.started_at else None for row in rows],
        "Command": [row.command for row in rows],
    }
    styled = pd.DataFrame(data).style
    for name, figure in columns.items():
        for sign in {row.signs.get(name, "") for row in rows}:
            places = [number for number, row in enumerate(rows) if row.signs.get(name, "") == sign]
            text = partial(signed_text, name, sign=sign)
            styled = styled.format(text, subset=pd.IndexSlice[places, [figure.label]], na_rep="n/a")
    return styled


def _config(columns: Mapping[str, Figure]) -> dict[str, Any]:
    kinds = st.column_config
    shown: dict[str, Any] = {
        figure.label: kinds.NumberColumn(figure.label, help=f"{figure.help} ≤ at most, ≥ at least, ~ about.")
        for figure in columns.values()
        if figure.page == "shown"
    }
    return {
        **shown,
        **dict.fromkeys(figure.label for figure in columns.values() if figure.page == "hidden"),
        "Grows": kinds.TextColumn("Grows", width=58, alignment="center", help="It grew steadily through the window."),
        "Process": kinds.TextColumn("Process", pinned=True),
        "PID": kinds.NumberColumn("PID", format="%d"),
        "Trend": kinds.LineChartColumn(
            "Trend", y_min=0, width="small",
            help="cudaHostAlloc, driver, registered and locked memory over the window, for the largest holders.",
        ),
        "Started (UTC)": kinds.DatetimeColumn("Started (UTC)", format="YYYY-MM-DD HH:mm:ss"),
        "Command": kinds.TextColumn("Command", width="large"),
    }  # fmt: skip


def _details(every: Sequence[Holder]) -> None:
    chosen = st.session_state.get(_CHOSEN)
    if chosen is None:
        st.caption("Select a row to see all that is known of a process.")
        return
    found = next((one for one in every if (one.pid, one.started_at) == chosen), None)
    with st.container(border=True):
        if found is None:
            st.markdown(f"Process {chosen[0]} holds no pinned memory any more.")
            return
        st.markdown(f"**{plain(found.name)}**, pid {found.pid}")
        fact_columns(holder_facts(found))
