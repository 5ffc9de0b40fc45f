"""What a page begins with. It stands before the rest is there."""

from __future__ import annotations

import time

import streamlit as st

from pinscope.dashboard.pages import PageEntry

_HEAD_START_SECONDS = 0.05
"""A browser draws at once all that reaches it at once, which takes it up to half a second of a page with a form."""
_SHOWN = "page-shown"
"""In the session: the page whose heading was drawn last."""


def heading(page: PageEntry) -> None:
    """Draw a page's heading and its opening, and on a new page let the browser draw them before it gets the rest."""
    st.title(page.heading, anchor=False)
    if page.opening:
        st.markdown(page.opening)
    if st.session_state.get(_SHOWN) != page.title:
        st.session_state[_SHOWN] = page.title
        time.sleep(_HEAD_START_SECONDS)
