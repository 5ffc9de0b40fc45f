"""Home: this machine, what can be measured on it, and what has been."""

from __future__ import annotations

from itertools import islice

import streamlit as st

from pinscope.analysis.machine import machine_findings
from pinscope.dashboard import state, widgets
from pinscope.dashboard.pages import EXPERIMENTS, RUNS
from pinscope.dashboard.plain import plain, sentence
from pinscope.dashboard.run_cards import run_list
from pinscope.dashboard.tour import tour
from pinscope.probes.capabilities import capabilities
from pinscope.records.capability import Capability
from pinscope.records.environment import Device, Environment
from pinscope.report.machine_facts import environment_facts, gpu_facts, link_text, version_text
from pinscope.units import format_bandwidth

LATEST = 3
"""Runs shown here; the Runs page has all."""


def show() -> None:
    """Draw the page. The machine needs no database, so it comes first and stands whatever the store does."""
    environment = state.environment()
    _welcome()
    if environment.devices:
        widgets.gpu_cards(environment.devices, _gpu)
    else:
        _no_gpu(environment)
    with widgets.errors_shown():
        _runs(bool(environment.devices))
    _machine(environment)


def _welcome() -> None:
    words, action = st.columns([4, 1], vertical_alignment="center", gap="large")
    words.title("What does pinned memory buy on this machine?", anchor=False)
    words.markdown(
        "PinScope measures what page-locked (pinned) host memory brings to a CUDA program, and what it costs: "
        "on this machine, with the numbers behind every conclusion."
    )
    with action.container(key="first-step"):  # looks like a button: see style.css
        st.page_link(EXPERIMENTS.path, label="Run an experiment", icon=":material/play_arrow:", width="stretch")


def _no_gpu(environment: Environment) -> None:
    reason = environment.missing.get("devices", "no NVIDIA driver answers")
    st.info(
        f"{plain(sentence(reason))} The runs below were recorded on other machines; the host model runs here.",
        title="No GPU on this machine",
        icon=":material/memory:",
    )


def _gpu(device: Device) -> None:
    link = device.link
    st.markdown(f"**GPU {device.index}: {plain(device.name)}**")
    with st.grid(2, min_column_width=150):
        st.metric("Best link", link_text(link, at_best=True))
        st.metric("Link limit", format_bandwidth(link.limit_bytes_per_second if link else None))
    widgets.fact_table(gpu_facts(device))


def _runs(has_gpu: bool) -> None:
    store = state.store()
    own = list(islice(store.each_run(recordings=False), LATEST))
    widgets.storage_note(store)
    if own:
        st.header("Latest runs", anchor=False)
        run_list(store, own)
        st.page_link(RUNS.path, label="All runs", icon=":material/arrow_forward:")
    elif has_gpu:
        st.caption("No runs on this machine yet. The first one takes less than a minute.")
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
    st.header("The machine", anchor=False)
    facts = [fact for fact in environment_facts(environment) if not fact[0].startswith("GPU ")]  # they have cards
    widgets.fact_columns([*facts, ("PinScope", version_text(environment))])


def _capability(capability: Capability) -> None:
    mark = ":green[:material/check_circle:]" if capability.works else ":gray[:material/cancel:]"
    st.markdown(f"{mark} **{plain(capability.title)}**")
    widgets.reason_and_advice(capability.reason, capability.advice)


if __name__ == "__main__":
    show()
