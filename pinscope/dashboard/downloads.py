"""Files to take away: reports of every kind, and the bundle that another PinScope imports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import streamlit as st

from pinscope.dashboard.opened_run import OpenedRun
from pinscope.dashboard.plain import plain
from pinscope.records.limits import BUNDLE_ROWS, UPLOAD_MIB
from pinscope.report.write import render
from pinscope.store.bundle import render_bundle
from pinscope.store.store import Store


@dataclass(frozen=True)
class ReportKind:
    """A file that a run can be written to."""

    suffix: str
    title: str
    mime: str


REPORTS = (
    ReportKind(".html", "HTML report", "text/html"),
    ReportKind(".md", "Markdown report", "text/markdown"),
    ReportKind(".csv", "Observations, CSV", "text/csv"),
    ReportKind(".parquet", "Observations, Parquet", "application/vnd.apache.parquet"),
    ReportKind(".json", "Run, JSON", "application/json"),
)
TIMELINE = ReportKind(".perfetto.json", "Timeline, Perfetto", "application/json")
"""For runs that recorded when each copy and kernel began and ended."""


def download_buttons(store: Store, opened: OpenedRun) -> None:
    """One button a kind of file; a file is written when its button is pressed."""
    run = opened.run
    if opened.is_large:
        st.caption(
            f"Its observations are more than {UPLOAD_MIB} MiB, too many for a download from this page. On the command "
            f"line: `pinscope report {plain(run.id)} -o report.html`, `pinscope export {plain(run.id)} -o FILE`."
        )
        return
    if opened.document:
        for kind in _kinds(opened):
            st.download_button(
                kind.title, partial(render, [opened.document], kind.suffix), f"pinscope-{run.id}{kind.suffix}",
                kind.mime, key=f"download{kind.suffix}", on_click="ignore", width="stretch",
                icon=":material/download:",
            )  # fmt: skip
    bundle_button(store, {run.id: run.observations}, "Bundle for another PinScope", f"pinscope-{run.id}.pinscope")


def _kinds(opened: OpenedRun) -> Sequence[ReportKind]:
    return (*REPORTS, TIMELINE) if opened.has_spans else REPORTS


def bundle_button(store: Store, runs: Mapping[str, int], label: str, file_name: str) -> None:
    """A button that packs the runs, by id with the number of their observations, into one file."""
    if (rows := sum(runs.values())) > BUNDLE_ROWS:
        st.caption(f"{rows:,} observations are more than one bundle holds ({BUNDLE_ROWS:,}): filter the list.")
        return
    st.download_button(
        label, partial(_bundle, store, tuple(runs)), file_name, "application/octet-stream", key="download-bundle",
        on_click="ignore", width="stretch", icon=":material/inventory_2:",
    )  # fmt: skip


def _bundle(store: Store, run_ids: Sequence[str]) -> bytes:
    return render_bundle([(store.run(run_id), store.observations(run_id)) for run_id in run_ids], store.parts)
