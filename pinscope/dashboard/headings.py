"""What a page begins with."""

from __future__ import annotations

import streamlit as st

from pinscope.dashboard.pages import PageEntry


def heading(page: PageEntry) -> None:
    """Draw a page's heading and its opening."""
    st.title(page.heading, anchor=False)
    if page.opening:
        st.markdown(page.opening)
