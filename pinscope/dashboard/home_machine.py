"""Home below its question: this machine, what can be measured on it, and what has been."""

from __future__ import annotations

from contextlib import suppress

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from pinscope.analysis.machine import machine_findings
from pinscope.dashboard import state, widgets
from pinscope.dashboard.answers import NO_GPU, latest_runs, why_no_gpu
from pinscope.dashboard.error_lines import errors_shown
from pinscope.dashboard.gpu_cards import show_gpus
from pinscope.dashboard.measuring import measure_machine
from pinscope.dashboard.pages import EXPERIMENTS, RUNS, TRACES
from pinscope.dashboard.plain import plain
from pinscope.dashboard.run_cards import run_list
from pinscope.dashboard.tour import tour
from pinscope.errors import StoreFailed
from pinscope.probes.capabilities import capabilities
from pinscope.records.capability import Capability
from pinscope.records.environment import Environment
from pinscope.report.machine_facts import environment_facts, version_text


def show_machine(place: DeltaGenerator) -> None:
    """Draw it; the machine needs no database, so it comes first and stands whatever the store does.

    Args:
        place: for the first step, beside the page's question.
    """
    environment = state.environment()
    if environment.devices:
        _gpu_host(environment, place)
    else:
        with place, st.container(key="first-step"):  # looks like a button: see style.css
            st.page_link(EXPERIMENTS.path, label="Run an experiment", icon=":material/play_arrow:", width="stretch")
        _no_gpu(environment)
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


def _no_gpu(environment: Environment) -> None:
    st.info(plain(why_no_gpu(environment)), title=NO_GPU, icon=":material/memory:")


def _runs(has_gpu: bool) -> None:
    store = state.store()
    own = latest_runs(store)
    widgets.storage_note(store)
    if own:
        st.header("Latest runs", anchor=False)
        run_list(store, own)
        st.page_link(RUNS.path, label="All runs", icon=":material/arrow_forward:")
    if not has_gpu:
        tour(store)
        st.page_link(RUNS.path, label="All recordings", icon=":material/inventory_2:")


def _machine(environment: Environment) -> None:
    findings = [finding for finding in machine_findings(environment) if finding.rule != "no-gpu"]  # said above
    if findings:
        st.header("Findings on this machine", anchor=False)
        widgets.finding_list(findings)
    st.header("What can be measured here", anchor=False)
    widgets.cards(capabilities(environment), _capability)
    st.page_link(
        TRACES.path, label="Trace a program of your own: which of its lines should pin memory?", icon=TRACES.icon
    )
    st.header("The machine", anchor=False)
    facts = [fact for fact in environment_facts(environment) if not fact[0].startswith("GPU ")]  # they have cards
    widgets.fact_columns([*facts, ("PinScope", version_text(environment))])


def _capability(capability: Capability) -> None:
    mark = ":green[:material/check_circle:]" if capability.works else ":gray[:material/cancel:]"
    st.markdown(f"{mark} **{plain(capability.title)}**")
    widgets.reason_and_advice(capability.reason, capability.advice)
