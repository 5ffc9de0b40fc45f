"""A plain table of facts: what, and its value in words."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from pinscope.dashboard.plain import plain
from pinscope.report.facts import Fact


def fact_table(facts: Sequence[Fact]) -> None:
    """Draw the facts, one a line."""
    lines = [(f"**{plain(name)}**", plain(text)) for name, text in facts]
    st.table(pd.DataFrame(lines, columns=["fact", "value"]), border="horizontal", hide_index=True, hide_header=True)


def fact_columns(facts: Sequence[Fact]) -> None:
    """Draw the facts in two columns, where there is room for two."""
    half = (len(facts) + 1) // 2
    left, right = st.columns(2, gap="large")
    with left:
        fact_table(facts[:half])
    with right:
        fact_table(facts[half:])
