"""Runs: a table of them, or one in full (``?run=ID``). Filters, search, order and page stand in the address."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import IO, TypeVar

import streamlit as st

from pinscope.dashboard import state
from pinscope.dashboard.pages import EXPERIMENTS as EXPERIMENTS_PAGE
from pinscope.dashboard.pages import RUNS
from pinscope.dashboard.run_view import MESSAGE, TICK, bundle_button, compare_link, run_table, show_message, show_run
from pinscope.dashboard.widgets import heading, plain, show_error, storage_note
from pinscope.errors import BadInput, UnknownName
from pinscope.experiments.registry import readers
from pinscope.records.run import LAB_TITLES, STATUSES, Run
from pinscope.store.bundle import BundleReader
from pinscope.store.choice import COLUMNS, NEWEST, ORDERS, Wanted, fits
from pinscope.store.documents import DamagedRun
from pinscope.store.store import Store
from pinscope.text import sentence

RUNS_A_PAGE = 12
_ADDRESS = "run in the address of Runs"
_LIST = "how the list of runs was left"
_IN_ADDRESS = ("search", "filter-experiment", "filter-lab", "filter-status", "sort", "filter-recordings", "page")
_Choice = TypeVar("_Choice", bound=str)


def show() -> None:
    """Draw the list, or the run that the address names."""
    wanted = st.query_params.get("run")
    is_new = _show_address(wanted)
    if wanted is None:
        heading(RUNS)
        # Back here, by no link to a certain list.
        if not st.query_params and (is_new or "sort" not in st.session_state):
            st.session_state.update(st.session_state.get(_LIST, {}))
        _list(state.store())
        return
    st.page_link(RUNS.path, label="All runs", icon=":material/arrow_back:")
    store = state.store()
    show_run(store, store.run(wanted))


def _show_address(wanted: str | None) -> bool:
    """Streamlit 1.67 keeps the address where a link leads to the page that it stands on: from the list to a run, and
    back. Says whether it leads elsewhere than before."""
    if st.session_state.get(_ADDRESS, "") == wanted:
        return False
    st.session_state[_ADDRESS] = wanted
    if wanted is None:
        if not st.query_params:
            st.query_params.clear()
    else:
        st.query_params["run"] = wanted
    return True


def _list(store: Store) -> None:
    show_message()
    runs, matching, damaged = _filtered(store)
    storage_note(store)
    for broken in damaged:
        st.error(plain(sentence(str(broken))), icon=":material/broken_image:")
    if runs or any(st.session_state.get(f"filter-{word}") for word in COLUMNS):
        own = sum(not run.recording for run in runs)
        older = ", the newest ones: 'pinscope runs list' has all" if own == NEWEST else ""
        st.caption(f"{len(matching):,} of {len(runs):,} runs{older}")
        _ticked(store)
        pages = max(1, -(-len(matching) // RUNS_A_PAGE))
        place = st.container()
        page = st.pagination(pages, key="page", bind="query-params") if pages > 1 else 1
        with place:
            run_table(store, matching[(page - 1) * RUNS_A_PAGE : page * RUNS_A_PAGE], with_boxes=True)
        if not matching:
            st.info("No run fits these filters.", icon=":material/filter_alt_off:")
    else:
        st.info("No runs yet. Start one on the Experiments page, or import a bundle below.", icon=":material/info:")
        st.page_link(EXPERIMENTS_PAGE.path, label="Go to Experiments", icon=":material/science:")
    _bundles(store, {run.id: run.observations for run in matching})
    st.session_state[_LIST] = {key: st.session_state[key] for key in _IN_ADDRESS if key in st.session_state}


def _ticked(store: Store) -> None:
    """What can be done with the runs that are ticked, wherever in the list they are."""
    runs = list[Run]()
    for key in sorted(map(str, st.session_state)):
        if key.startswith(TICK) and st.session_state[key]:
            with suppress(UnknownName):  # deleted meanwhile
                runs.append(store.run(key.removeprefix(TICK)))
    if len(runs) > 1:
        compare_link(runs, f"Compare the {len(runs)} ticked runs")
    else:
        st.caption("Tick another run to compare both." if runs else "Tick two runs or more to compare them.")


def _filtered(store: Store) -> tuple[list[Run], list[Run], list[DamagedRun]]:
    """The runs that are looked at, those of them that fit, and which are damaged."""
    with st.container(horizontal=True, gap="small", vertical_alignment="bottom"):
        search = st.text_input(
            "Search",
            key="search",
            bind="query-params",
            width=165,
            placeholder="words, #tag",
            help="All these words, in a run's id, name, tags, note, answer, host or GPU; #tag: runs with this tag.",
        )
        titles = {reader.name: reader.kind.title for reader in readers()}
        experiment = _filter("Experiment", titles, "filter-experiment")
        lab = _filter("Measured on", LAB_TITLES, "filter-lab")
        status = _filter("Status", {word: word for word in STATUSES}, "filter-status")
        order = st.selectbox("Order", list(ORDERS), key="sort", bind="query-params", width=165, format_func=str.title)
        recordings = st.toggle(
            "Recordings",
            value=True,
            key="filter-recordings",
            bind="query-params",
            help="Also list the runs that ship with PinScope.",
        )
    listed = list(store.listed(experiment=experiment, lab=lab, status=status, most=NEWEST))
    runs = [run for run in listed if isinstance(run, Run)]
    fitting = [run for run in runs if fits(run, Wanted(search=search)) and (recordings or not run.recording)]
    if order != "newest":
        fitting.sort(key=ORDERS[order])
    return runs, fitting, [run for run in listed if isinstance(run, DamagedRun)]


def _filter(label: str, titles: Mapping[_Choice, str], key: str) -> _Choice | None:
    """One of the choices, or none for all."""
    return st.selectbox(
        label,
        [None, *titles],
        key=key,
        bind="query-params",
        width=165,
        format_func=lambda choice: titles[choice] if choice else "All",
    )


def _bundles(store: Store, runs: Mapping[str, int]) -> None:
    """Import and export: how runs travel between machines."""
    with st.expander("Import or export a bundle", icon=":material/swap_horiz:", key="bundles"):
        st.caption("A bundle is one .pinscope file that carries runs, with every observation, between machines.")
        given = st.file_uploader("Import", type=["pinscope"], key=f"upload-{st.session_state.get('uploads', 0)}")
        if given is not None and _import(store, given, given.name):
            st.session_state["uploads"] = st.session_state.get("uploads", 0) + 1  # empties the uploader
            st.rerun()
        if runs:
            bundle_button(store, runs, f"Export these {len(runs)} runs", "pinscope-runs", state.anonymous_choice())


def _import(store: Store, file: IO[bytes], name: str) -> bool:
    """Store the runs of a bundle; false, with one line, if it cannot be used."""
    try:
        with BundleReader(file, name) as bundle:
            imported = store.import_runs(bundle.items(), bundle.parts)
    except BadInput as error:
        show_error(error)
        return False
    added, completed, skipped = map(len, (imported.added, imported.completed, imported.skipped))
    st.session_state[MESSAGE] = f"Imported {added}, completed {completed}, {skipped} were here already."
    return True


if __name__ == "__main__":
    show()
