"""Experiments: choose one, set it up, start it, and watch it."""

from __future__ import annotations

import streamlit as st

from pinscope.dashboard import state
from pinscope.dashboard.budget_card import budget_card
from pinscope.dashboard.failures import show_error
from pinscope.dashboard.finding_list import headline
from pinscope.dashboard.lab_choice import Place, choose_place
from pinscope.dashboard.manual_pages import help_links
from pinscope.dashboard.opened_run import open_run
from pinscope.dashboard.pages import RUNS
from pinscope.dashboard.parameter_form import parameter_form
from pinscope.dashboard.plain import plain, sentence
from pinscope.dashboard.run_progress import run_progress
from pinscope.dashboard.run_words import badges, experiment_title, title
from pinscope.dashboard.storage import storage_note
from pinscope.errors import PinScopeError, UnknownName
from pinscope.experiments.registry import EXPERIMENTS, Entry, find, method
from pinscope.records.run import ExperimentRun, Run
from pinscope.runner.jobs import Request, prepare, start
from pinscope.store.store import Store


def show() -> None:
    """Draw the page: what runs first, then the form."""
    st.title("Experiments", anchor=False)
    store = state.store()
    _now(store, st.query_params.get("run"))
    entry = _choose()
    st.header(plain(entry.experiment.question), anchor=False)
    with st.expander("How it is measured", icon=":material/menu_book:"):
        st.markdown(plain(method(entry.experiment)))
        help_links({"How to read it, and what to do": f"experiments/{entry.experiment.name}"})
    _set_up(store, entry)


def _now(store: Store, started: str | None) -> None:
    """Runs that go on, whoever started them; the one ``started`` here is shown in full, also when it has ended."""
    if st.session_state.pop("just-started", False):
        st.toast("Started. The run is at the top of this page.", icon=":material/play_arrow:")
    running = store.unfinished()
    storage_note(store)
    for run in running:
        run_progress(store, run, with_chart=run.id == started)
    if started and started not in [run.id for run in running]:
        try:
            _ended(store, store.run(started))
        except UnknownName:  # deleted meanwhile
            del st.query_params["run"]


def _ended(store: Store, run: Run) -> None:
    with st.container(border=True, key="ended"):
        st.markdown(f"**{plain(title(run))}**")
        badges(run)
        if run.error:
            st.error(plain(sentence(run.error)))
        opened = open_run(store, run)
        if opened.document and opened.document.reading.headline:
            headline(opened.document.reading.headline)
        st.page_link(RUNS.path, label="**Open the result**", icon=RUNS.icon, query_params={"run": run.id})


def _choose() -> Entry:
    names = [entry.name for entry in EXPERIMENTS]
    name = st.segmented_control(
        "Experiment", names, default=names[0], required=True, format_func=experiment_title,
        key="experiment", bind="query-params", label_visibility="collapsed",
    )  # fmt: skip
    return find(name or names[0])


def _set_up(store: Store, entry: Entry) -> None:
    form, side = st.columns([2, 1], gap="large")
    with form:
        place, quick = choose_place(entry.experiment, state.environment())
        preset = entry.experiment.Params.preset(place.lab, quick)
        overrides = parameter_form(preset, key=f"{entry.experiment.name}-{place.lab}-{'quick' if quick else 'full'}")
    request = Request(entry.experiment.name, place.lab, place.device, quick, overrides)
    with side:
        try:
            run = prepare(request, state.environment())
        except PinScopeError as error:
            show_error(error)
            st.button("Start", type="primary", width="stretch", disabled=True, key="start-refused")
            return
        budget_card(run, place)
        _start_button(store, request, place)


def _start_button(store: Store, request: Request, place: Place) -> None:
    """Start on a click; a second click of a double click finds a button that is no longer there."""
    number = st.session_state.setdefault("starts", 0)
    runs = [run for run in store.unfinished() if isinstance(run, ExperimentRun)]
    busy = any((run.lab, run.device) == (place.lab, place.device) for run in runs)
    label = "Start (waits for its turn)" if busy else "Start"
    if st.button(label, type="primary", width="stretch", icon=":material/play_arrow:", key=f"start-{number}"):
        st.session_state["starts"] = number + 1
        state.environment.clear()  # a run carries the machine as it is now
        run = prepare(request, state.environment())
        start(store, run)
        st.session_state["just-started"] = True
        st.query_params["run"] = run.id
        # Not st.switch_page: a refresh of a progress bar that waits its turn would take the browser back to this page.
        st.rerun()
    where = place.title if place.gpu else f"the {place.title}"
    st.caption(f"Runs on {plain(where)} in a process of its own. You may close this page meanwhile.")


if __name__ == "__main__":
    show()
