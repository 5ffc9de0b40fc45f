"""Home: what PinScope answers, this machine, what can be measured on it, and what has been."""

from __future__ import annotations

from contextlib import suppress
from itertools import islice

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from pinscope.analysis.machine import machine_findings
from pinscope.dashboard import state, widgets
from pinscope.dashboard.machine import measure_machine, show_gpus
from pinscope.dashboard.pages import EXPERIMENTS, HOME, RUNS, TRACES
from pinscope.dashboard.run_view import run_answer, run_table
from pinscope.dashboard.widgets import errors_shown, experiment_title, heading, plain
from pinscope.errors import StoreFailed
from pinscope.experiments.registry import find_reader
from pinscope.probes.environment import capabilities
from pinscope.records.base import Capability
from pinscope.records.environment import Environment
from pinscope.report.facts import environment_facts, version_text
from pinscope.store.recordings import newest_recordings
from pinscope.store.store import Store
from pinscope.text import sentence

LATEST = 3
"""Own runs that Home shows; the Runs page has all."""
STEPS = ("bandwidth", "overlap", "pinning_strategy", "page_tables", "timeline")
"""What pinning brings, what it takes to use it, how to pin, what it costs, and who holds it."""


def show() -> None:
    """Draw the page; the machine needs no database, so it comes first and stands whatever the store does."""
    words, first_step = st.columns([3, 1], vertical_alignment="center", gap="large")
    with words:
        heading(HOME)
    environment = state.environment()
    if environment.devices:
        _gpu_host(environment, first_step)
    else:
        with first_step, st.container(key="first-step"):  # looks like a button: see style.css
            st.page_link(EXPERIMENTS.path, label="Run an experiment", icon=":material/play_arrow:", width="stretch")
        st.info(plain(_why_no_gpu(environment)), title="No GPU on this machine", icon=":material/memory:")
    with errors_shown():
        _runs(bool(environment.devices))
    _machine(environment)


def _gpu_host(environment: Environment, place: DeltaGenerator) -> None:
    store = None
    with suppress(StoreFailed):  # said below, where the runs would stand
        store = state.store()
    if store is not None:
        measure_machine(store, environment, place)
    show_gpus(store, environment.devices)


def _why_no_gpu(environment: Environment) -> str:
    """Why none is found, and what there is instead."""
    reason = environment.missing.get("devices", "no NVIDIA driver answers")
    return (
        f"{sentence(reason)} The runs below were recorded on GPU hosts. Experiments here run on the host model: in "
        "host memory, without a GPU."
    )


def _runs(has_gpu: bool) -> None:
    store = state.store()
    own = list(islice(store.each_run(recordings=False), LATEST))
    widgets.storage_note(store)
    if own:
        st.header("Latest runs", anchor=False)
        run_table(store, own)
        st.page_link(RUNS.path, label="All runs", icon=":material/arrow_forward:")
    if not has_gpu:
        _tour(store)
        st.page_link(RUNS.path, label="All recordings", icon=":material/inventory_2:")


def _tour(store: Store) -> None:
    """One step at a time: a question, its answer and the chart that shows it."""
    newest = newest_recordings()
    steps = [name for name in STEPS if name in newest]
    if not steps:
        return
    st.header(f"Pinned memory in {len(steps)} steps", anchor=False)
    st.caption("Each answer comes from a run that ships with PinScope. It was measured on the machine that it names.")
    name = st.segmented_control(
        "Step",
        steps,
        default=steps[0],
        required=True,
        key="step",
        label_visibility="collapsed",
        format_func=lambda name: f"{steps.index(name) + 1} · {experiment_title(name)}",
    )
    run = newest[name or steps[0]]
    with st.container(border=True, key="tour"):
        st.markdown(plain(find_reader(run.experiment).kind.question))
        run_answer(store, run)


def _machine(environment: Environment) -> None:
    findings = [finding for finding in machine_findings(environment) if finding.rule != "no-gpu"]  # said above
    if findings:
        st.header("Findings on this machine", anchor=False)
        widgets.finding_cards(findings)
    st.header("What can be measured here", anchor=False)
    widgets.cards(capabilities(environment), _capability)
    st.page_link(
        TRACES.path, label="Trace a program of your own: which of its lines should pin memory?", icon=TRACES.icon
    )
    st.header("The machine", anchor=False)
    facts = [fact for fact in environment_facts(environment) if not fact[0].startswith("GPU ")]  # they have cards
    widgets.fact_table([*facts, ("PinScope", version_text(environment))])


def _capability(capability: Capability) -> None:
    mark = ":green[:material/check_circle:]" if capability.works else ":gray[:material/cancel:]"
    st.markdown(f"{mark} **{plain(capability.title)}**")
    if capability.reason:
        st.markdown(plain(sentence(capability.reason)))
    if capability.advice:
        st.caption(f":material/arrow_forward: {plain(capability.advice)}")


if __name__ == "__main__":
    show()
