"""Experiments: choose one, set it up, start it, and watch it."""

from __future__ import annotations

import streamlit as st

from pinscope.dashboard import state, widgets
from pinscope.dashboard.pages import EXPERIMENTS as EXPERIMENTS_PAGE
from pinscope.dashboard.pages import RUNS
from pinscope.dashboard.parameter_form import parameter_form
from pinscope.dashboard.run_view import badges, run_answer, run_link, run_progress
from pinscope.dashboard.state import open_run
from pinscope.errors import PinScopeError, UnknownName
from pinscope.experiments.contract import AnyExperiment
from pinscope.experiments.registry import EXPERIMENTS, Entry, find, method
from pinscope.lab.harness import safe_pinned_bytes
from pinscope.records.environment import Device
from pinscope.records.run import HOST_MODEL_NOTE, LAB_TITLES, ExperimentRun, LabKind, Run
from pinscope.report.facts import run_command
from pinscope.runner.jobs import Request, prepare, start
from pinscope.store.recordings import newest_recordings
from pinscope.store.store import Store
from pinscope.text import sentence
from pinscope.units import format_bytes, format_duration


def show() -> None:
    """Draw the page: what runs first, then the form."""
    widgets.heading(EXPERIMENTS_PAGE)
    store = state.store()
    _now(store, st.query_params.get("run"))
    entry = _choose()
    st.header(widgets.plain(entry.experiment.question), anchor=False)
    with st.expander("How it is measured", icon=":material/menu_book:"):
        st.markdown(widgets.plain(method(entry.experiment)))
        widgets.help_links({"How to read it, and what to do": f"experiments/{entry.experiment.name}"})
    _set_up(store, entry)


def _now(store: Store, started: str | None) -> None:
    """Runs that go on, started here or elsewhere; the one ``started`` here is shown in full, also when it has ended."""
    if st.session_state.pop("just-started", False):
        st.toast("Started. The run is at the top of this page.", icon=":material/play_arrow:")
    running = store.unfinished()
    widgets.storage_note(store)
    for run in running:
        run_progress(store, run, with_chart=run.id == started)
    if started and started not in [run.id for run in running]:
        try:
            _ended(store, store.run(started))
        except UnknownName:  # deleted meanwhile
            del st.query_params["run"]


def _ended(store: Store, run: Run) -> None:
    with st.container(border=True, key="ended"):
        st.markdown(f"**{widgets.plain(widgets.title(run))}**")
        badges(run)
        if run.error:
            st.error(widgets.plain(sentence(run.error)))
        opened = open_run(store, run)
        if opened.document:
            widgets.answer(opened.document.reading)
        run_link(run, "**Open the result**", RUNS.icon)


def _choose() -> Entry:
    names = [entry.name for entry in EXPERIMENTS]
    name = st.segmented_control(
        "Experiment",
        names,
        default=names[0],
        required=True,
        format_func=widgets.experiment_title,
        key="experiment",
        bind="query-params",
        label_visibility="collapsed",
    )
    return find(name or names[0])


def _set_up(store: Store, entry: Entry) -> None:
    """The form; of an experiment that this machine cannot run, its recording instead."""
    refusal = entry.experiment.labs.get("host", "unknown")
    recording = newest_recordings().get(entry.name)
    if refusal and recording and not state.environment().devices:
        st.info(
            f"{widgets.plain(sentence(refusal))} No GPU was found here: the run below was measured on another machine.",
            title="This experiment needs a GPU",
            icon=":material/inventory_2:",
        )
        run_answer(store, recording)
        return
    form, side = st.columns([2, 1], gap="large")
    with form:
        gpu, quick = _choose_place(entry.experiment)
        lab: LabKind = "cuda" if gpu else "host"
        preset = entry.experiment.Params.preset(lab, quick)
        overrides = parameter_form(preset, key=f"{entry.experiment.name}-{lab}-{'quick' if quick else 'full'}")
    request = Request(entry.experiment.name, lab, gpu.index if gpu else 0, quick, overrides)
    with side:
        try:
            run = prepare(request, state.environment())
        except PinScopeError as error:
            widgets.show_error(error)
            st.button("Start", type="primary", width="stretch", disabled=True, key="start-refused")
            return
        _budget(run, gpu)
        _start_button(store, request, _title(gpu) if gpu else f"the {_title(None)}")
        st.caption("The same on the command line:")
        st.code(run_command(run, overrides), language=None, wrap_lines=True)


def _title(gpu: Device | None) -> str:
    return f"GPU {gpu.index}: {gpu.name}" if gpu else LAB_TITLES["host"]


def _choose_place(experiment: AnyExperiment) -> tuple[Device | None, bool]:
    """Draw the two choices; the GPU, none for the host model, and whether the run is to be quick."""
    every = [*state.environment().devices, None]
    possible = [gpu for gpu in every if experiment.labs.get("cuda" if gpu else "host", "unknown") is None] or every
    titles = [_title(gpu) for gpu in possible]
    grid = st.grid(2, min_column_width=280, gap=("small", "large"))
    with grid.cell():
        chosen = st.selectbox("Runs on", titles, key="place", persist_state="session")
    with grid.cell():
        size = st.segmented_control(
            "Size",
            ["Quick", "Full"],
            default="Quick",
            required=True,
            key="size",
            persist_state="session",
            help="Quick takes seconds and is less precise. Full covers more sizes and combinations.",
        )
    gpu = possible[titles.index(chosen) if chosen in titles else 0]
    if gpu is None:
        st.caption(widgets.plain(HOST_MODEL_NOTE))
    return gpu, size != "Full"


def _budget(run: ExperimentRun, gpu: Device | None) -> None:
    """What the run will take, beside what is safe on this machine."""
    budget = run.budget
    safe = format_bytes(safe_pinned_bytes(run.environment.limits, run.lab))
    free = f" Free on the GPU: {format_bytes(gpu.memory_free_bytes)}." if gpu else ""
    with st.container(border=True):
        st.markdown("**What this run will take**")
        with st.grid(2, min_column_width=120):
            st.metric("Pinned", format_bytes(budget.pinned_bytes), help=f"At once. Safe here: up to {safe}.")
            st.metric("Other host memory", format_bytes(budget.pageable_bytes))
            st.metric("GPU memory" if gpu else "Model's device memory", format_bytes(budget.device_bytes))
            estimate = "By what the recorded runs took on H200 and H100 hosts." if gpu else "Depends on the processor."
            st.metric("Time (estimate)", format_duration(budget.seconds), help=estimate)
        st.caption(f"Safe to pin here: up to {safe}.{free}")
        for note in run.notes:
            st.caption(f":material/sticky_note_2: {widgets.plain(note)}")


def _start_button(store: Store, request: Request, where: str) -> None:
    """Start on a click; a second click of a double click finds a button that is no longer there."""
    number = st.session_state.setdefault("starts", 0)
    runs = [run for run in store.unfinished() if isinstance(run, ExperimentRun)]
    busy = any((run.lab, run.device) == (request.lab, request.device) for run in runs)
    label = "Start (waits until the device is free)" if busy else "Start"
    if st.button(label, type="primary", width="stretch", icon=":material/play_arrow:", key=f"start-{number}"):
        st.session_state["starts"] = number + 1
        state.environment.clear()  # a run carries the machine as it is now
        run = prepare(request, state.environment())
        start(store, run)
        st.session_state["just-started"] = True
        st.query_params["run"] = run.id
        # Not st.switch_page: a refresh of a progress bar that waits its turn would take the browser back to this page.
        st.rerun()
    st.caption(f"Runs on {widgets.plain(where)} in a process of its own. You may close this page.")


if __name__ == "__main__":
    show()
