"""This machine on Home: a card for each GPU, and one button that measures it with the quick experiments."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from pinscope.dashboard import state
from pinscope.dashboard.pages import EXPERIMENTS, NOW
from pinscope.dashboard.run_view import PROGRESS_SECONDS, run_link, stop_button
from pinscope.dashboard.state import open_run
from pinscope.dashboard.widgets import cards as draw_cards
from pinscope.dashboard.widgets import errors_shown, experiment_title, fact_table, plain, prose, utc
from pinscope.errors import PinScopeError
from pinscope.experiments.bandwidth.findings import slower_than_same_model
from pinscope.live.findings import gpu_verdict
from pinscope.records.environment import Device, Environment
from pinscope.records.run import ExperimentRun, Finding, Run
from pinscope.report.facts import Document, by_severity, gpu_facts, link_text
from pinscope.runner.jobs import ALL, Request, Suite, possible, select_experiments
from pinscope.store.recordings import recorded_runs
from pinscope.store.store import Store
from pinscope.text import sentence
from pinscope.units import format_about, format_bandwidth, format_bytes

SHOWN = ("bandwidth", "overlap", "page_tables")
"""Experiments whose answers stand in a card: what pinning brings, what it takes to use it and what it costs."""
_NEWEST = 60
"""The newest runs of an experiment among which those of a GPU are looked for."""
Measured = Mapping[str, Run]
"""Experiment → its newest run on a GPU."""


def show_gpus(store: Store | None, gpus: Sequence[Device]) -> None:
    """Draw a card for each GPU; without a store, what the machine shows of it."""
    newest = {gpu.uuid: _newest_runs(store, gpu) if store else {} for gpu in gpus}
    with st.container(key="gpu-cards"):
        st.header("GPUs", anchor=False)
        draw_cards(gpus, lambda gpu: _card(store, gpu, newest), len(gpus) if len(gpus) <= 2 else "auto")


def _newest_runs(store: Store, gpu: Device) -> Measured:
    """The newest run of each experiment that measured this very GPU to the end."""
    newest = {}
    for name in SHOWN:
        runs = islice(store.each_run(experiment=name, lab="cuda", status="done", recordings=False), _NEWEST)
        newest[name] = next((run for run in runs if run.gpu and run.gpu.uuid == gpu.uuid), None)
    return {name: run for name, run in newest.items() if run is not None}


def _card(store: Store | None, gpu: Device, newest: Mapping[str, Measured]) -> None:
    st.markdown(f"**GPU {gpu.index}: {plain(gpu.name)}**")
    limit = format_bandwidth(gpu.link.limit_bytes_per_second if gpu.link else None)
    memory = f"{format_bytes(gpu.memory_free_bytes)} of {format_bytes(gpu.memory_total_bytes)} of GPU memory free"
    st.caption(f"{link_text(gpu.link, at_best=True)}, at most {limit} one way · {memory}")
    now = gpu_verdict(state.snapshot(), gpu.index)
    if now:
        st.page_link(NOW.path, label=plain(now), icon=NOW.icon)
    if store is not None:
        with errors_shown():
            _measured(store, gpu, newest)
    with st.expander("About this GPU"):
        fact_table(gpu_facts(gpu))


def _measured(store: Store, gpu: Device, newest: Mapping[str, Measured]) -> None:
    """The answers of its runs, where it falls behind, and what to do next."""
    measured = newest[gpu.uuid]
    warnings, documents = st.container(), {}
    with st.grid(3, min_column_width=300):
        for name, run in measured.items():
            with st.container(gap="xsmall"):
                run_link(run, prose(run.verdict or experiment_title(name)))
                st.caption(f"Measured {utc(run.created_at)}")
            documents[name] = open_run(store, run).document
    with warnings:
        for finding in _behind(store, gpu, newest):
            run_link(measured["bandwidth"], prose(finding.title), ":material/warning:")
    _next(measured, documents)


def _next(measured: Measured, documents: Mapping[str, Document | None]) -> None:
    """What is missing, else the gravest finding that asks for something."""
    if missing := [experiment_title(name) for name in SHOWN if name not in measured]:
        words = "Not measured yet: " + ", ".join(missing)
        st.page_link(EXPERIMENTS.path, label=plain(words), icon=":material/science:")
        return
    findings = {name: document.reading.findings for name, document in documents.items() if document}
    gravest = by_severity([finding for own in findings.values() for finding in own])[:1]
    for name, own in findings.items():
        if gravest and gravest[0] in own and gravest[0].severity in ("warning", "critical"):
            run_link(measured[name], prose(f"Next: {gravest[0].advice}"), ":material/arrow_forward:")
            return


def _behind(store: Store, gpu: Device, newest: Mapping[str, Measured]) -> Iterator[Finding]:
    """Where it copies slower than another GPU of its model here, else than the recorded one."""
    own = newest[gpu.uuid].get("bandwidth")
    if not isinstance(own, ExperimentRun):
        return
    for other, name in _same_model(gpu, newest):
        rows, other_rows = open_run(store, own).rows, open_run(store, other).rows
        if finding := slower_than_same_model(own, rows, other, other_rows, name):
            yield finding
            return


def _same_model(gpu: Device, newest: Mapping[str, Measured]) -> Iterator[tuple[ExperimentRun, str]]:
    for uuid, measured in newest.items():
        run = measured.get("bandwidth")
        if uuid != gpu.uuid and isinstance(run, ExperimentRun) and run.gpu and run.gpu.name == gpu.name:
            yield run, f"GPU {run.device}"
    for run in recorded_runs():
        if run.experiment == "bandwidth" and isinstance(run, ExperimentRun) and run.gpu and run.gpu.name == gpu.name:
            yield run, f"the recorded {gpu.name}"


@dataclass
class _Shared:
    """What all tabs look at.

    Attributes:
        suite: the last one that was started.
        lock: held while one is started, so that two tabs do not start two.
    """

    suite: Suite | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self, store: Store, environment: Environment) -> None:
        with self.lock:
            if self.suite is None or self.suite.has_ended:
                suite = Suite(store, machine_requests(environment), environment)
                suite.start()
                self.suite = suite

    def end(self) -> None:
        """Cancel what goes on, and wait for its end."""
        if self.suite is not None:
            self.suite.cancel()
            self.suite.join()


@st.cache_resource(show_spinner=False, on_release=_Shared.end)
def _shared() -> _Shared:
    return _Shared()


def machine_requests(environment: Environment) -> Sequence[Request]:
    """All quick experiments on the first GPU, and on each other one those that its card shows.

    Raises:
        NotPossible: none can run here.
    """
    first, *others = environment.devices
    requests = [*select_experiments(Request(ALL, "cuda", first.index, quick=True), environment).requests]
    for gpu in others:
        requests += possible([Request(name, "cuda", gpu.index, quick=True) for name in SHOWN], environment).requests
    return requests


@st.cache_data(show_spinner=False, ttl=30)
def _expected(_environment: Environment) -> tuple[int, float]:
    """How many experiments there are, and the seconds that they take."""
    suite = Suite(state.store(), machine_requests(_environment), _environment)
    return len(suite.steps), suite.expected_seconds


def measure_machine(store: Store, environment: Environment, place: DeltaGenerator) -> None:
    """Draw the button in its place, or below it how far the measuring is that it started."""
    shared = _shared()
    if shared.suite is not None and not shared.suite.has_ended:
        with st.container(border=True, key="measuring"):
            st.fragment(_bar, run_every=PROGRESS_SECONDS)(shared)
        return
    with place:
        _button(shared, store, environment)
    for step in shared.suite.steps if shared.suite else ():
        if step.problem:
            st.warning(plain(sentence(f"{step.request.experiment} on GPU {step.request.device}: {step.problem}")))


def _button(shared: _Shared, store: Store, environment: Environment) -> None:
    try:
        count, seconds = _expected(environment)
    except PinScopeError as error:
        st.button("Measure this machine", disabled=True, key="measure-refused", width="stretch")
        st.caption(plain(sentence(str(error))))
        return
    if st.button("Measure this machine", type="primary", icon=":material/play_arrow:", key="measure", width="stretch"):
        state.environment.clear()  # a run carries the machine as it is now
        with errors_shown():
            shared.start(store, state.environment())
            st.rerun()
    st.caption(f"{count} quick experiments, {format_about(seconds)}. You may close this page meanwhile.")


def _bar(shared: _Shared) -> None:
    suite = shared.suite
    if suite is None or suite.has_ended:
        st.rerun()
    with errors_shown():
        fraction = suite.fraction()
        left = format_about((1 - fraction) * suite.expected_seconds)
        step = suite.current or suite.steps[-1]
        number = suite.steps.index(step) + 1
        words, action = st.columns([5, 1], vertical_alignment="center")
        with words:
            label = f"{experiment_title(step.request.experiment)} on GPU {step.request.device}"
            place = f"{number} of {len(suite.steps)} experiments, {left} left"
            st.progress(fraction, text=f"**{fraction:.0%}** · {plain(label)} · {place}")
        with action:
            stop_button("measuring-cancel", shared.end)
