"""Home: this machine, what can be measured on it, and what has been."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import streamlit as st

from pinscope.analysis.machine import machine_findings
from pinscope.dashboard import state
from pinscope.dashboard.failures import one_clear_line
from pinscope.dashboard.finding_list import finding_list
from pinscope.dashboard.machine_view import capability_cards, gpu_cards, machine_table
from pinscope.dashboard.pages import EXPERIMENTS, RUNS
from pinscope.dashboard.plain import plain, sentence
from pinscope.dashboard.run_list import run_list
from pinscope.dashboard.storage import storage_note
from pinscope.experiments.registry import EXPERIMENTS as REGISTRY
from pinscope.records.environment import Environment
from pinscope.records.run import Run
from pinscope.store.recordings import recorded_runs
from pinscope.store.store import Store

LATEST = 3
"""Runs shown here; the Runs page has all."""


def show() -> None:
    """Draw the page. The machine needs no database, so it comes first and stands whatever the store does."""
    environment = state.environment()
    _welcome()
    if environment.devices:
        st.header("GPUs", anchor=False)
        gpu_cards(environment)
    else:
        _no_gpu(environment)
    with one_clear_line():
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


def _runs(has_gpu: bool) -> None:
    store = state.store()
    own = list(islice(store.each_run(recordings=False), LATEST))
    storage_note(store)
    if not has_gpu:
        _recordings(store, recorded_runs())
    st.header("Latest runs", anchor=False)
    if own:
        run_list(store, own)
        st.page_link(RUNS.path, label="All runs", icon=":material/arrow_forward:")
    else:
        st.caption("No runs of this machine yet. The first one takes less than a minute.")


def _recordings(store: Store, recorded: Sequence[Run]) -> None:
    """Those of GPUs, in the order of the experiments; apart from them live views and the host model: never compared."""
    names = [entry.experiment.name for entry in REGISTRY]
    known = sorted(recorded, key=lambda run: names.index(run.experiment) if run.experiment in names else len(names))
    on_gpus = [run for run in known if run.lab == "cuda"]
    without = [run for run in known if run.lab == "host"]
    watched = [run for run in known if run.lab == "live"]
    if on_gpus:
        st.header("Recorded on GPUs", anchor=False)
        st.caption("These runs ship with PinScope. They were measured on other machines, as each says.")
        run_list(store, on_gpus)
    if watched:
        st.header("Recorded live views", anchor=False)
        st.caption("These ship with PinScope too. Another machine was watched while its own programs ran.")
        run_list(store, watched)
    if without:
        st.header("Recorded without a GPU", anchor=False)
        st.caption(
            "These ship with PinScope too. They were measured on another machine's host model: their figures describe "
            "that machine's memory, not a GPU."
        )
        run_list(store, without)


def _machine(environment: Environment) -> None:
    findings = [finding for finding in machine_findings(environment) if finding.rule != "no-gpu"]  # said above
    if findings:
        st.header("Findings on this machine", anchor=False)
        finding_list(findings)
    st.header("What can be measured here", anchor=False)
    capability_cards(environment)
    st.header("The machine", anchor=False)
    machine_table(environment)


if __name__ == "__main__":
    show()
