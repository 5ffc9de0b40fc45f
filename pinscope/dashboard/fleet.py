"""Fleet: the runs of many hosts together. The address names experiment, label and figure."""

from __future__ import annotations

from collections import Counter

import streamlit as st

from pinscope.analysis.outliers import Fleet
from pinscope.charts.fleet import label_map, spread
from pinscope.dashboard import state, widgets
from pinscope.dashboard.pages import EXPERIMENTS, FLEET, RUNS
from pinscope.dashboard.widgets import chart_view, downloads, heading, prose, same_as_command, table_list, verdict_line
from pinscope.records.run import LAB_TITLES
from pinscope.report import fleet as report
from pinscope.store.figures import experiments_with_figures
from pinscope.text import visible

MOST_LINKS = 30
"""Outliers that are named above the table, each with its newest run."""


def show() -> None:
    """Draw the choice, and at once what it comes to."""
    heading(FLEET)
    store = state.store()
    known = {
        kept[0] if kept[1] == "cuda" else f"{kept[0]}, {LAB_TITLES['host']}": kept
        for kept in experiments_with_figures(store)
    }
    if not known:
        st.info("No finished run yet that came with its figures.", icon=FLEET.icon)
        st.page_link(EXPERIMENTS.path, label="Go to Experiments", icon=EXPERIMENTS.icon)
        return
    with st.container(horizontal=True, gap="medium", vertical_alignment="bottom"):
        chosen = st.selectbox("Experiment", list(known), key="of", bind="query-params", width=300)
        with widgets.loading_ahead():
            fleet = state.fleet(store, *known[chosen])
        labels = {item for gpu in fleet.gpus for item in gpu.labels.items()}
        several = [name for name, count in Counter(name for name, _ in sorted(labels)).items() if count > 1]
        label = st.selectbox("Label", [*several, "host"], key="label", bind="query-params", width=200)
        downloads(lambda suffix: report.render(fleet, suffix, label), report.SUFFIXES, "pinscope-fleet")
    verdict_line(report.verdict(fleet))
    for outlier in (*fleet.outliers, *fleet.suspects)[:MOST_LINKS]:
        _link(outlier.line, ":material/report:", outlier.gpu.runs[0])
    if chart := label_map(fleet, label):
        chart_view(chart, key="map")
    figures = {fleet.figures[at].full_words: at for at in fleet.most_out}
    figure = st.selectbox("Figure", list(figures), key="figure", bind="query-params")
    chart_view(spread(fleet, figures[figure]), key="spread")
    table_list([report.spread_table(fleet), report.gpu_table(fleet, label)], "fleet")
    _drill_down(fleet)
    lab = " --lab host" if fleet.lab == "host" else ""
    same_as_command(f"pinscope fleet show {fleet.experiment} --label {label}{lab}")


def _link(text: str, icon: str | None, run_id: str) -> None:
    st.page_link(RUNS.path, label=prose(text), icon=icon, query_params={"run": run_id})


def _drill_down(fleet: Fleet) -> None:
    """The runs of one GPU. Those of the table are offered, any other can be typed: ten thousand take a browser long."""
    runs = {visible(fleet.gpus[place].words): fleet.gpus[place].runs for place in fleet.order}
    offered = list(runs)[: report.MOST_ROWS]
    chosen = st.selectbox("Runs of", offered, key="gpu", bind="query-params", accept_new_options=True)
    for run_id in runs.get(chosen, ()):
        _link(run_id, RUNS.icon, run_id)
    if chosen not in runs:
        st.caption(f"No GPU of the fleet is called {prose(chosen)}.")


if __name__ == "__main__":
    show()
