"""A chart on a page: title, figure, caption, in the colours of the page."""

from __future__ import annotations

import streamlit as st

from pinscope.charts.chart import Chart
from pinscope.charts.theme import SchemeName, dressed
from pinscope.dashboard.plain import plain

_FONT = '"Source Sans", sans-serif'
"""What Streamlit sets its pages in, and brings along."""
_CONFIG = {
    "displaylogo": False,
    "modeBarButtonsToRemove": ["lasso2d", "select2d", "zoomIn2d", "zoomOut2d", "autoScale2d"],
    "responsive": True,
}


def chart_view(chart: Chart, key: str, border: bool = True) -> None:
    """Draw one chart; ``key`` is unique on the page."""
    with st.container(border=border, height="stretch"):
        st.markdown(f"**{plain(chart.title)}**")
        figure = dressed(chart.figure, _scheme()).update_layout(font_family=_FONT)
        st.plotly_chart(figure, theme=None, key=key, config=_CONFIG, width="stretch")
        if chart.caption:
            st.caption(plain(chart.caption))


def _scheme() -> SchemeName:
    """Light or dark, as the reader's page is; grey that reads on both before the browser has told."""
    return st.context.theme.type or "neutral"
