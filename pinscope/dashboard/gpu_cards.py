"""A card for each GPU: what was measured of it, who uses it now, where it falls behind, and what to do next."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from pinscope.charts.chart import Chart
from pinscope.dashboard import state
from pinscope.dashboard.labels import errors_shown, experiment_title, own_time, plain, prose
from pinscope.dashboard.pages import EXPERIMENTS, NOW, RUNS
from pinscope.dashboard.state import IN_CARDS, Measured, newest_runs, open_run
from pinscope.dashboard.widgets import chart_view, fact_table, gpu_cards
from pinscope.experiments.bandwidth.charts import draw_small as bandwidth_bars
from pinscope.experiments.bandwidth.findings import below_like
from pinscope.experiments.overlap.charts import draw_small as overlap_bars
from pinscope.experiments.page_tables.charts import draw_small as page_tables_bars
from pinscope.experiments.registry import checked_rows
from pinscope.live.reading import gpu_verdict
from pinscope.records.environment import Device
from pinscope.records.finding import Finding
from pinscope.records.run import ExperimentRun, Run
from pinscope.report.document import Document
from pinscope.report.facts import by_severity, gpu_facts, link_text
from pinscope.store.recordings import recorded_runs
from pinscope.store.store import Store
from pinscope.units import format_bandwidth, format_bytes

_DrawSmall = Callable[[ExperimentRun, Sequence[Mapping[str, Any]]], Chart | None]
SHOWN: Mapping[str, _DrawSmall] = dict(zip(IN_CARDS, (bandwidth_bars, overlap_bars, page_tables_bars), strict=True))
"""Experiments whose answers stand in a card, and what draws them small."""


@dataclass(frozen=True)
class _Card:
    """A card whose words stand, and the places in it for what takes longer to find.

    Attributes:
        gpu: whose it is.
        measured: its runs.
        warnings: for where it falls behind.
        charts: experiment → for its chart.
        next: for what to do next.
    """

    gpu: Device
    measured: Measured
    warnings: DeltaGenerator
    charts: Mapping[str, DeltaGenerator]
    next: DeltaGenerator


def show_gpus(store: Store | None, gpus: Sequence[Device]) -> None:
    """Draw the cards: their words first, then what runs must be opened for. Without a store, what the machine shows."""
    newest = {gpu.uuid: newest_runs(store, gpu) if store else {} for gpu in gpus}
    cards: list[_Card] = []
    with st.container(key="gpu-cards"):
        gpu_cards(gpus, lambda gpu: cards.append(_words(gpu, newest[gpu.uuid])))
    for card in cards:
        if store is not None:
            with errors_shown():
                _fill(store, card, newest)


def _words(gpu: Device, measured: Measured) -> _Card:
    st.markdown(f"**GPU {gpu.index}: {plain(gpu.name)}**")
    limit = format_bandwidth(gpu.link.limit_bytes_per_second if gpu.link else None)
    memory = f"{format_bytes(gpu.memory_free_bytes)} of {format_bytes(gpu.memory_total_bytes)} of GPU memory free"
    st.caption(f"{link_text(gpu.link, at_best=True)}, at most {limit} one way · {memory}")
    now = gpu_verdict(state.snapshot(), gpu.index)
    if now:
        st.page_link(NOW.path, label=plain(now), icon=NOW.icon)
    warnings, charts = st.container(), {}
    with st.grid(3, min_column_width=300):
        for name, run in measured.items():
            with st.container(height="stretch", vertical_alignment="distribute"):
                with st.container(gap="xsmall"):
                    _run_link(run.verdict or experiment_title(name), run, "")
                    st.caption(f"Measured {own_time(run.created_at)}", unsafe_allow_html=True)
                charts[name] = st.container()
    card = _Card(gpu, measured, warnings, charts, st.container())
    with st.expander("About this GPU"):
        fact_table(gpu_facts(gpu))
    return card


def _fill(store: Store, card: _Card, newest: Mapping[str, Measured]) -> None:
    documents = {}
    for name, place in card.charts.items():
        with place:
            opened = open_run(store, card.measured[name])
            documents[name] = opened.document
            run = opened.run
            chart = SHOWN[name](run, checked_rows(name, opened.rows)) if isinstance(run, ExperimentRun) else None
            if chart:
                chart_view(chart, key=f"card-{run.id}", border=False)
    with card.warnings:
        for finding in _behind(store, card, newest):
            _run_link(finding.title, card.measured["bandwidth"], ":material/warning:")
    with card.next:
        _next(card.measured, documents)


def _run_link(words: str, run: Run, icon: str) -> None:
    st.page_link(RUNS.path, label=prose(words), icon=icon, query_params={"run": run.id})


def _next(measured: Measured, documents: Mapping[str, Document | None]) -> None:
    """What is missing, else the gravest finding that asks for something."""
    if missing := [experiment_title(name) for name in SHOWN if name not in measured]:
        words = "Not measured yet: " + ", ".join(missing)
        st.page_link(EXPERIMENTS.path, label=plain(words), icon=":material/science:")
        return
    found = [(finding, measured[name]) for name, document in documents.items() for finding in _advising(document)]
    gravest = by_severity([finding for finding, _ in found])
    if gravest:
        run = next(run for finding, run in found if finding is gravest[0])
        _run_link(f"Next: {gravest[0].advice}", run, ":material/arrow_forward:")


def _advising(document: Document | None) -> Iterator[Finding]:
    findings: Sequence[Finding] = document.reading.findings if document else ()
    return (finding for finding in findings if finding.severity in ("warning", "critical"))


def _behind(store: Store, card: _Card, newest: Mapping[str, Measured]) -> Iterator[Finding]:
    """Where it copies slower than another GPU of its model here, else than the recorded one."""
    own = card.measured.get("bandwidth")
    if not isinstance(own, ExperimentRun):
        return
    for like, name in _likes(card.gpu, newest):
        rows, like_rows = open_run(store, own).rows, open_run(store, like).rows
        if finding := below_like(own, rows, like, like_rows, name):
            yield finding
            return


def _likes(gpu: Device, newest: Mapping[str, Measured]) -> Iterator[tuple[ExperimentRun, str]]:
    for uuid, measured in newest.items():
        run = measured.get("bandwidth")
        if uuid != gpu.uuid and isinstance(run, ExperimentRun) and run.gpu and run.gpu.name == gpu.name:
            yield run, f"GPU {run.device}"
    for run in recorded_runs():
        if run.experiment == "bandwidth" and isinstance(run, ExperimentRun) and run.gpu and run.gpu.name == gpu.name:
            yield run, f"the recorded {gpu.name}"
