"""Compare: runs against other runs. The address names both sides (``?a=ID&b=ID,ID``), and opens no file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import streamlit as st

from pinscope.analysis.comparison import CellVerdict, ComparedCell, Comparison
from pinscope.charts.comparison import draw
from pinscope.dashboard import state, widgets
from pinscope.dashboard.pages import COMPARE
from pinscope.dashboard.widgets import Colour, chart_view, experiment_title, heading, plain, prose, utc, verdict_line
from pinscope.experiments.registry import verdict_of
from pinscope.records.run import LAB_TITLES, Run
from pinscope.report import comparison as report
from pinscope.report.facts import called
from pinscope.store.choice import NEWEST
from pinscope.store.store import Store
from pinscope.text import visible
from pinscope.units import format_change, format_measured

_COLOURS: Mapping[CellVerdict, Colour] = {"better": "green", "worse": "red", "same": "gray", "unknown": "gray"}


def show() -> None:
    """Draw the choice, and at once what it comes to."""
    heading(COMPARE)
    store = state.store()
    known = [run for run in store.each_run(most=NEWEST) if run.status != "running"]
    with st.grid(2, min_column_width=320) as grid:
        with grid.cell():
            first = _side(store, "a", known, [])
        with grid.cell():
            second = _side(store, "b", known, first)
    if missing := [name for name, runs in (("A", first), ("B", second)) if not runs]:
        st.info(f"Choose a run for {' and for '.join(missing)}, or tick runs on the page Runs.", icon=COMPARE.icon)
        return
    with widgets.loading_ahead():
        compared = state.compared(store, (tuple(first), tuple(second)))
    a, b = (",".join(run.id for run in runs) for runs in (first, second))
    with st.container(horizontal=True, vertical_alignment="center"):
        st.button("Swap sides", icon=":material/swap_horiz:", on_click=st.query_params.update, kwargs={"a": b, "b": a})
        widgets.downloads(partial(report.render, compared), report.SUFFIXES, "pinscope-comparison")
        everything = st.toggle("Show also what is the same", key="all", bind="query-params")
    for number, comparison in enumerate(compared.comparisons):
        _comparison(comparison, everything, f"compared-{number}")
    for words in compared.left_out:
        st.caption(prose(words))
    widgets.same_as_command(f"pinscope compare {a} {b}", "the runs")


def _side(store: Store, side: str, known: Sequence[Run], others: Sequence[Run]) -> list[Run]:
    """The runs of a side: those of the address, which names what somebody chooses."""
    linked, key = list[Run](), f"compare-{side}"
    with widgets.errors_shown():
        linked = [store.run(name) for name in st.query_params.get(side, "").split(",") if name]
    kinds, taken = {(run.experiment, run.lab) for run in others}, {run.id for run in others}
    fitting = [run for run in known if run.id not in taken and kinds <= {(run.experiment, run.lab)}]
    runs = {run.id: run for run in (*fitting, *linked)}
    st.session_state[key] = [run.id for run in linked]
    picked = st.multiselect(
        f"Side {side.upper()}",
        list(runs),
        key=key,
        format_func=lambda name: _label(runs[name]),
        placeholder="Choose runs",
        on_change=lambda: st.query_params.update({side: ",".join(st.session_state[key])}),
    )
    if st.query_params.get(side) == "":
        del st.query_params[side]
    return [runs[name] for name in picked]


def _label(run: Run) -> str:
    words = (called(run), widgets.title(run), utc(run.created_at), run.environment.host, run.id)
    return visible(" · ".join(filter(None, words)))


def _comparison(comparison: Comparison, everything: bool, key: str) -> None:
    """The verdict, the figures that are read first, the charts beside what differs in the machines, then the cells."""
    st.caption(f"{plain(experiment_title(comparison.experiment))} · {LAB_TITLES[comparison.a.runs[0].run.lab]}")
    verdict_line(verdict_of(comparison))
    widgets.cards(report.foremost(comparison), partial(_card, comparison), columns=4, width=240)
    left, right = st.columns([3, 2])
    with left:
        for chart in draw(comparison):
            chart_view(chart, key=f"{key}-{chart.key}")
    with right:
        for table in report.machines(comparison, everything):
            st.markdown(f"**{plain(table.title)}**")
            widgets.fact_table([(str(name), " → ".join(map(str, values))) for name, *values in table.rows])
    widgets.table_list(report.cells(comparison, everything), key)


def _card(comparison: Comparison, cell: ComparedCell) -> None:
    st.caption(prose(f"{cell.value.title}: {cell.words}"))
    sides = ((comparison.a.name, cell.a), (comparison.b.name, cell.b))
    figures = ((name, format_measured(side.value, cell.value.unit, side.spread)) for name, side in sides)
    st.markdown("  \n".join(f"{name} **{prose(figure)}**" for name, figure in figures))
    change = prose(f"{cell.verdict_words} {format_change(cell.ratio)}")
    st.markdown(f":{_COLOURS[cell.verdict]}-badge[{change}] {prose(cell.interval_words)}")


if __name__ == "__main__":
    show()
