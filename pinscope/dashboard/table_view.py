"""A plain table on a page."""

from __future__ import annotations

from functools import partial

import pandas as pd
import streamlit as st

from pinscope.dashboard.plain import plain
from pinscope.records.finding import Table
from pinscope.units import format_value


def table_view(table: Table, key: str) -> None:
    """Draw a table whose values sort as numbers and read with their units; ``key`` is unique on the page."""
    frame = pd.DataFrame(table.rows, columns=list(table.columns), dtype=object)  # keeps whole numbers and None
    formats = {
        column: partial(format_value, unit=unit) for column, unit in zip(table.columns, table.units, strict=True)
    }
    st.markdown(f"**{plain(table.title)}**")
    st.dataframe(frame.style.format(formats), hide_index=True, key=key, placeholder="n/a")  # type: ignore[arg-type]
    if table.note:
        st.caption(plain(table.note))
