"""Traces: how to make one, and what those that there are say, the newest first (``?run=ID``)."""

from __future__ import annotations

import streamlit as st

from pinscope.dashboard import state
from pinscope.dashboard.pages import TRACES
from pinscope.dashboard.run_view import show_message, show_run
from pinscope.dashboard.widgets import heading, storage_note
from pinscope.records.run import Run
from pinscope.text import visible

MOST = 200
"""Traces in the list; all are on the page Runs."""


def show() -> None:
    """Draw the page."""
    heading(TRACES)
    store = state.store()
    show_message()
    traces = [run for _, run in zip(range(MOST), store.each_run(experiment="trace"), strict=False)]
    storage_note(store)
    own = [run for run in traces if not run.recording]
    with st.expander("Trace a program", icon=":material/terminal:", expanded=not own, key="how-to-trace"):
        _how_to()
    wanted = st.query_params.get("run")
    if wanted and wanted not in [run.id for run in traces]:
        show_run(store, store.run(wanted), with_title=False)  # the list does not have it
    elif traces:
        chosen = _choose(traces, wanted)
        show_run(store, chosen, with_title=False)


def _how_to() -> None:
    st.markdown("On the GPU host:")
    st.code("pinscope trace train.py small.yaml", language=None)
    st.markdown(
        "The program runs as `python` would run it. The answer stands in the terminal at its end, and on this page. "
        "Of another environment, name its Python: `pinscope trace /envs/train/bin/python train.py`."
    )
    st.markdown("Traced on another machine? Write a bundle there, and import it on the page Runs:")
    st.code("pinscope trace -o train.pinscope train.py small.yaml", language=None)


def _choose(traces: list[Run], wanted: str | None) -> Run:
    """The trace to show: that of the address, else the newest."""
    by_id = {run.id: run for run in traces}
    chosen = st.selectbox(
        "Trace",
        list(by_id),
        index=list(by_id).index(wanted) if wanted else 0,
        format_func=lambda run_id: _label(by_id[run_id]),
        key=f"trace-{wanted}",
    )
    if chosen != (wanted or traces[0].id):
        st.query_params["run"] = chosen
    return by_id[chosen]


def _label(run: Run) -> str:
    program = " ".join(map(str, run.params.get("program", ()))) or "a program"
    if part := run.params.get("part"):
        program += f" · part {part}"
    elif run.params.get("what_if"):
        program += " · with lines pinned by --what-if"
    origin = f"recorded on {run.environment.host}" if run.recording else f"{run.created_at:%Y-%m-%d %H:%M:%S} UTC"
    return visible(f"{program} · {origin}")


if __name__ == "__main__":
    show()
