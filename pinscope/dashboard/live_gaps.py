"""What a snapshot could not look at, why, and what would make it readable."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from pinscope.dashboard.plain import plain, sentence
from pinscope.records.snapshot import Unreadable


def gaps(unreadable: Sequence[Unreadable]) -> None:
    """One card each; nothing where all was readable."""
    if not unreadable:
        return
    st.header("What cannot be read here", anchor=False)
    with st.grid(min_column_width=380):
        for one in unreadable:
            with st.container(border=True, height="stretch", gap="xsmall"):
                st.markdown(f":gray[:material/visibility_off:] **{plain(one.what)}**")
                if one.hides_holders:
                    st.badge("may hide holders", color="orange")
                st.markdown(plain(sentence(one.reason)))
                if one.advice:
                    st.caption(f":material/arrow_forward: {plain(one.advice)}")
