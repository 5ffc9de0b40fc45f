"""What pages are built from: text, cards, facts, figures, findings, charts and tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal, TypeVar

import pandas as pd
import streamlit as st

from pinscope.charts.lazy import LazyCharts
from pinscope.charts.marks import Chart
from pinscope.charts.theme import dressed
from pinscope.dashboard.pages import MANUAL_ROOT, PageEntry
from pinscope.errors import PinScopeError, StoreFailed, UnknownName
from pinscope.experiments.registry import find_reader
from pinscope.records.run import LAB_TITLES, Finding, Quantity, Reading, Run, Severity, Table
from pinscope.report.facts import (
    FIRST,
    SEVERITY_WORDS,
    Fact,
    answer_tables,
    by_severity,
    further_tables,
    quantity_text,
    table_texts,
)
from pinscope.store.store import Store
from pinscope.text import one_line, sentence
from pinscope.units import format_precision, format_share, format_value

_PUNCTUATION = re.compile(r"([!-/:-@\[-`{-~])")
_READ_LATER = re.compile(r"(:(?=[\w+/-]+:)|:(?=//)|\bwww(?=\.)|@)")
_QUANTITY = re.compile(r"(?<=\d) (?=(?:[KMGTP]iB|[KMGT]?B|ns|µs|ms|s|\\%|×)(?!\w))|(?<=±) (?=\d)")
"""In escaped text the space between a number and its unit, where a line must not end."""
_WORD_JOINER = "\N{WORD JOINER}"


def plain(text: str) -> str:
    """``text`` on one line, so that Markdown shows it as it stands: no HTML, link, image, formula, icon or colour.

    Every sign of ASCII punctuation is escaped, as CommonMark allows (section 2.4). Icons (``:name:``) and bare
    addresses are looked for after the escapes are resolved; an invisible word joiner keeps those from being found.
    """
    return _PUNCTUATION.sub(r"\\\1", _READ_LATER.sub(rf"\1{_WORD_JOINER}", one_line(text)))


def prose(text: str) -> str:
    """As :func:`plain`, for sentences: no line ends between a number and its unit."""
    return _QUANTITY.sub("\N{NO-BREAK SPACE}", plain(text))


def utc(moment: datetime) -> str:
    """``2026-11-21 04:15 UTC``."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def experiment_title(name: str) -> str:
    """The experiment's title, or its bare name if this version does not know it."""
    try:
        return find_reader(name).kind.title
    except UnknownName:
        return name


def title(run: Run) -> str:
    """``Bandwidth · NVIDIA H200``; for a run without a GPU the host model or the live view."""
    return f"{experiment_title(run.experiment)} · {run.gpu.name if run.gpu else LAB_TITLES[run.lab]}"


def show_error(error: PinScopeError) -> None:
    """The error's own line."""
    title = "The database cannot be used" if isinstance(error, StoreFailed) else None
    st.error(plain(sentence(str(error))), title=title, icon=":material/error:")


def help_links(pages: Mapping[str, str]) -> None:
    """Links to pages of the documentation, each in a tab of its own: label → name of the page."""
    links = (f"[{label}]({MANUAL_ROOT}{page}.html)" for label, page in pages.items())
    st.caption(f":material/help: {' · '.join(links)}")


@contextmanager
def errors_shown() -> Iterator[None]:
    """Show what PinScope raises on purpose as one line, never a traceback, in the place where the block draws."""
    try:
        yield
    except PinScopeError as error:
        show_error(error)


@contextmanager
def loading_ahead() -> Iterator[None]:
    """While the block reads what takes long, the browser loads what draws charts, tables and code. It takes a second
    for that, the first time; nothing is seen of it."""
    place = st.empty()
    with place.container(key="ahead"):
        st.plotly_chart({"data": [{}]}, key="ahead-chart")
        st.dataframe([], key="ahead-table")
        st.code("", language=None)
    yield
    place.empty()


def heading(page: PageEntry) -> None:
    """Draw a page's heading and its opening."""
    st.title(page.heading or page.title, anchor=False)
    if page.opening:
        st.markdown(page.opening)


_Item = TypeVar("_Item")
Colour = Literal["red", "orange", "blue", "green", "gray"]

_COLOURS: Mapping[Severity, Colour] = {"critical": "red", "warning": "orange", "note": "blue", "good": "green"}
_FONT = '"Source Sans", sans-serif'
"""What Streamlit sets its pages in, and brings along."""
_CHART_CONFIG = {
    "displaylogo": False,
    "modeBarButtonsToRemove": ["lasso2d", "select2d", "zoomIn2d", "zoomOut2d", "autoScale2d"],
    "responsive": True,
}


def storage_note(store: Store) -> None:
    """Say that nothing can be stored, if the last reading found it so."""
    if store.refusal:
        line = plain(sentence(f"{store.name}: {store.refusal}"))
        st.warning(line, title="Nothing can be stored here", icon=":material/lock:")


def cards(
    items: Sequence[_Item], draw: Callable[[_Item], None], columns: int | Literal["auto"] = "auto", width: int = 380
) -> None:
    """One card an item, all of equal height.

    Args:
        items: what to draw.
        draw: fills an item's card.
        columns: at most so many side by side.
        width: of a card, in pixels, at least.
    """
    with st.grid(columns, min_column_width=width):
        for item in items:
            with st.container(border=True, height="stretch", gap="xsmall"):
                draw(item)


def fact_table(facts: Sequence[Fact]) -> None:
    """Draw the facts, one a line."""
    lines = [(f"**{plain(name)}**", plain(text)) for name, text in facts]
    st.table(pd.DataFrame(lines, columns=["fact", "value"]), border="horizontal", hide_index=True, hide_header=True)


def headline(quantities: Sequence[Quantity]) -> None:
    """Draw the figures that answer the question."""
    with st.grid(FIRST, min_column_width=240):
        for quantity in quantities:
            below = format_precision(quantity.spread, quantity.repeats) if quantity.value is not None else None
            st.metric(
                plain(quantity.name),
                plain(format_value(quantity.value, quantity.unit)),
                delta=below or None,
                delta_color="off",
                delta_arrow="off",
                help=quantity.reason and plain(quantity.reason),
                border=True,
                height="stretch",
            )


def reading_below_verdict(reading: Reading, charts: Sequence[Chart]) -> None:
    """The figures, the chart and the findings that carry the verdict; the rest is one click away. Where tables belong
    to the answer, they stand in place of the figures."""
    shown = 0 if answer_tables(reading) else FIRST
    if reading.headline[:shown]:
        headline(reading.headline[:shown])
    findings = by_severity(reading.findings)
    if charts and findings:
        left, right = st.columns([3, 2])
        with left:
            chart_view(charts[0], key=f"chart-{charts[0].key}")
        with right:
            cards(findings[:FIRST], _finding, columns=1)
    elif charts:
        chart_view(charts[0], key=f"chart-{charts[0].key}")
    else:
        finding_cards(findings[:FIRST])
    _rest("figures", "More figures", reading.headline[shown:], headline)
    _rest("findings", "More findings", findings[FIRST:], finding_cards)
    _more_charts(charts)
    _rest("tables", "Tables", further_tables(reading), table_list)


def downloads(render: Callable[[str], bytes], suffixes: Sequence[str], name: str) -> None:
    """A report in each of the formats, made when it is asked for; ``name``: of the file, without its suffix."""
    with st.popover("Download", icon=":material/download:"):
        for suffix in suffixes:
            content = partial(render, suffix)
            st.download_button(f"Report, {suffix}", content, f"{name}{suffix}", on_click="ignore", width="stretch")


def same_as_command(command: str, held: str = "the choice") -> None:
    """What shows the same elsewhere: the address of the page, and a command."""
    st.caption(f"The address of this page holds {held}. On the command line:")
    st.code(command, language=None, wrap_lines=True)


def verdict_line(verdict: str) -> None:
    """What a run comes to, in one sentence."""
    st.subheader(prose(verdict), anchor=False)


def answer(reading: Reading, with_verdict: bool = True) -> None:
    """The verdict and its figures, where there are any."""
    if with_verdict and reading.verdict:
        verdict_line(reading.verdict)
    if reading.headline:
        headline(reading.headline[:FIRST])


def _rest(name: str, words: str, items: Sequence[_Item], draw: Callable[[Sequence[_Item]], None]) -> None:
    """What does not stand on the first screen: drawn when it is opened."""
    if not items:
        return
    with st.expander(f"{words} ({len(items)})", key=f"rest-{name}", on_change="rerun") as rest:
        if rest.open:
            draw(items)


def _more_charts(charts: Sequence[Chart]) -> None:
    """Those after the first. How many there are is known when they are drawn, which is when somebody opens them."""
    if charts.may_have_more_than(1) if isinstance(charts, LazyCharts) else len(charts) > 1:
        with st.expander("More charts", key="rest-charts", on_change="rerun") as rest:
            if rest.open:
                grid = st.grid(2, min_column_width=480)
                for chart in charts[1:]:
                    with grid:
                        chart_view(chart, key=f"chart-{chart.key}", height="stretch")
                if len(charts) == 1:
                    st.caption("What was measured gives no other chart.")


def bar_cards(table: Table) -> None:
    """A table of few rows as cards side by side: name, figure, and the bar of each."""
    bar = table.columns.index(table.bar)
    with st.grid("auto", min_column_width=165):
        for row, (name, figure, *_) in zip(table.rows, table_texts(table), strict=True):
            with st.container(border=True, height="stretch", gap="xsmall"):
                st.caption(plain(name))
                share = float(row[bar] or 0.0)
                st.markdown(f"**{prose(figure)}**" + (f" · {prose(format_share(share))}" if share < 1 else ""))
                st.progress(share)
    if table.note:
        st.caption(plain(table.note))


def table_list(tables: Sequence[Table], key: str = "table") -> None:
    """Draw the tables, one below the other; ``key`` is unique on the page."""
    for number, table in enumerate(tables):
        _table(table, f"{key}-{number}")


def finding_cards(findings: Sequence[Finding]) -> None:
    """Draw the findings, the gravest first."""
    cards(by_severity(findings), _finding, columns=2, width=420)


def _finding(finding: Finding) -> None:
    badge = f":{_COLOURS[finding.severity]}-badge[{SEVERITY_WORDS[finding.severity]}]"
    st.markdown(f"{badge} **{prose(finding.title)}**")
    if finding.detail:
        st.markdown(prose(sentence(finding.detail)))
    if finding.evidence:
        figures = (f"{plain(quantity.name)}: **{prose(quantity_text(quantity))}**" for quantity in finding.evidence)
        st.caption(" · ".join(figures))
    if finding.advice and finding.severity != "good":
        st.markdown(f":material/arrow_forward: {prose(finding.advice)}")
    if finding.code:
        with st.expander("Code to paste"):
            st.code(finding.code, language="python")


def chart_view(chart: Chart, key: str, border: bool = True, height: Literal["content", "stretch"] = "content") -> None:
    """Draw one chart; ``key`` is unique on the page. Charts side by side are stretched to one height."""
    with st.container(border=border, height=height):
        st.markdown(f"**{plain(chart.title)}**")
        _plot(chart, key, {})
        if chart.caption:
            st.caption(prose(chart.caption))


def chart_with_zoom(chart: Chart, key: str, marked: Callable[[float, float], None]) -> None:
    """Draw a chart of whose x axis a stretch can be marked with the pointer.

    Args:
        chart: over time.
        key: unique on the page, and for what the chart shows.
        marked: called with the stretch's ends before the page is drawn anew.
    """

    def handle_selection() -> None:
        for box in st.session_state[key].selection.box:
            marked(*box["x"])

    with st.container(border=True):
        layout = {"dragmode": "select", "selectdirection": "h"}
        _plot(chart, key, layout, on_select=handle_selection, selection_mode="box")
        st.caption(f"{plain(chart.caption)} Mark a stretch in the chart to look closer.")


def _plot(chart: Chart, key: str, layout: Mapping[str, Any], **options: Any) -> None:
    scheme = st.context.theme.type or "neutral"  # neutral reads on light and dark: the browser has not said yet
    figure = dressed(chart.figure, scheme).update_layout(font_family=_FONT, **layout)
    st.plotly_chart(figure, theme=None, key=key, config=_CHART_CONFIG, width="stretch", alt=chart.alt, **options)


def _table(table: Table, key: str) -> None:
    """Its values sort as numbers and read with their units. A column that says why values are missing is one of texts:
    Streamlit has one word for all that is missing."""
    frame = pd.DataFrame(table.rows, columns=list(table.columns), dtype=object)  # keeps whole numbers and None
    formats = {name: partial(format_value, unit=unit) for name, unit in zip(table.columns, table.units, strict=True)}
    texts = pd.DataFrame(table_texts(table), columns=list(table.columns))
    for name in table.missing:
        frame[name] = texts[name]
    columns = {
        name: st.column_config.Column(
            alignment="right" if unit != "text" else "left", width=30 + 7 * max(map(len, texts[name]), default=0)
        )
        for name, unit in zip(table.columns, table.units, strict=True)
        if name in table.missing
    }
    if table.bar:
        columns[table.bar] = st.column_config.ProgressColumn(min_value=0.0, max_value=1.0, format="percent")
    st.markdown(f"**{plain(table.title)}**")
    styled = frame.style.format(formats)  # type: ignore[arg-type]
    st.dataframe(styled, hide_index=True, key=key, placeholder="n/a", column_config=columns)
    if table.note:
        st.caption(plain(table.note))
