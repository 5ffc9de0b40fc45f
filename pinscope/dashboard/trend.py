"""Trend: a figure over the runs of a machine. The address names experiment, series (its oldest run) and figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import streamlit as st

from pinscope.analysis.read_rows import grouped
from pinscope.analysis.trend import series_words, step_words, verdict
from pinscope.charts.comparison import draw_trend
from pinscope.dashboard import state
from pinscope.dashboard.pages import EXPERIMENTS, TREND
from pinscope.dashboard.run_view import run_link
from pinscope.dashboard.widgets import chart_view, experiment_title, heading, prose, same_as_command, verdict_line
from pinscope.records.run import Run
from pinscope.report.trend import series
from pinscope.store.choice import NEWEST
from pinscope.text import visible
from pinscope.units import format_count

SHOWN_PARAMETERS = 3
"""By which series of one machine are told apart in the list, of those that differ."""


def show() -> None:
    """Draw the choice, and at once what it comes to."""
    heading(TREND)
    store = state.store()
    known = grouped(series(store, most=NEWEST), lambda some: some[0].experiment)
    if not known:
        st.info("No finished run of this or another machine yet.", icon=TREND.icon)
        st.page_link(EXPERIMENTS.path, label="Go to Experiments", icon=EXPERIMENTS.icon)
        return
    with st.container(horizontal=True, gap="medium", vertical_alignment="bottom"):
        experiment = _choose("Experiment", {name: experiment_title(name) for name in known}, "experiment", 260)
        alike = {some[0].id: some for some in known[experiment]}
        runs = alike[_choose("Machine and parameters", _titles(known[experiment]), "series", 420)]
        names = {key: own.name for key, own in state.figures_of(store, runs[-1]).items()}
        figure = _choose("Figure", names, "figure", 320) if names else None
    if figure is None:
        st.info("The newest of these runs has no figure to follow.", icon=TREND.icon)
        return
    trend = state.trend(store, tuple(runs), figure)
    verdict_line(verdict(trend))
    chart_view(draw_trend(trend), key="trend")
    for step in trend.steps:
        run_link(step.run, prose(step_words(step, trend.figure.unit)), ":material/stairs:")
    if trend.left_out:
        st.caption(prose(trend.left_out))
    if sum(len(some) for series_of in known.values() for some in series_of) >= NEWEST:
        st.caption(f"Of the newest {NEWEST:,} finished runs of all kinds; the command line looks at all.")
    same_as_command(f"pinscope runs trend {experiment} {figure} --like {trend.runs[-1].id}")


def _choose(label: str, titles: Mapping[str, str], name: str, width: int) -> str:
    """One of the choices: that which the address names; the first where it names none. Streamlit's own binding would
    put the words there, which change with each run."""
    link, key = st.query_params.get(name), f"trend-{name}"

    def follow() -> None:
        st.query_params[name] = st.session_state[key]

    st.session_state[key] = link if link in titles else next(iter(titles))
    chosen = st.selectbox(label, list(titles), key=key, width=width, format_func=titles.__getitem__, on_change=follow)
    st.query_params[name] = chosen
    return chosen


def _titles(alike: Sequence[Sequence[Run]]) -> dict[str, str]:
    """Id of the oldest run → lab, machine, days, number of runs, and what the parameters differ in."""
    given = [some[-1].params for some in alike]
    names = dict.fromkeys(name for params in given for name in params)
    varied = [name for name in names if len({str(params.get(name)) for params in given}) > 1][:SHOWN_PARAMETERS]
    titles = {}
    for some, params in zip(alike, given, strict=True):
        own = [f"{name} {params[name]}" for name in varied if name in params]
        titles[some[0].id] = visible(" · ".join([series_words(some), format_count(len(some), "run"), *own]))
    return titles


if __name__ == "__main__":
    show()
