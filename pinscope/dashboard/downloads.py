"""Files to take away: reports of every kind, and the bundle that another PinScope imports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import streamlit as st

from pinscope.dashboard.opened_run import OpenedRun
from pinscope.records.run import Run
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
    if opened.document:
        for kind in _kinds(opened):
            st.download_button(
                kind.title, partial(render, [opened.document], kind.suffix), f"pinscope-{run.id}{kind.suffix}",
                kind.mime, key=f"download{kind.suffix}", on_click="ignore", width="stretch",
                icon=":material/download:",
            )  # fmt: skip
    bundle_button(store, [run], "Bundle for another PinScope", f"pinscope-{run.id}.pinscope")


def _kinds(opened: OpenedRun) -> Sequence[ReportKind]:
    has_spans = any(row.get("kind") == "span" for row in opened.rows)
    return (*REPORTS, TIMELINE) if has_spans else REPORTS


def bundle_button(store: Store, runs: Sequence[Run], label: str, file_name: str) -> None:
    """A button that packs the runs into one file."""
    st.download_button(
        label, partial(_bundle, store, runs), file_name, "application/octet-stream", key="download-bundle",
        on_click="ignore", width="stretch", icon=":material/inventory_2:",
    )  # fmt: skip


def _bundle(store: Store, runs: Sequence[Run]) -> bytes:
    return render_bundle([(run, store.observations(run.id)) for run in runs])
