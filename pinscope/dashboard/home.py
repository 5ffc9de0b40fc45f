"""Home: what PinScope answers, then this machine, what can be measured on it, and what has been."""

from __future__ import annotations

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from pinscope.dashboard.headings import heading
from pinscope.dashboard.pages import HOME


def show() -> None:
    """Draw the page: its question at once, the rest when what draws it is loaded, which takes a new server a second."""
    place = _welcome()
    from pinscope.dashboard.home_machine import show_machine  # noqa: PLC0415 - a new server needs a second to load it

    show_machine(place)


def _welcome() -> DeltaGenerator:
    """The question that the page answers; gives the place for the first step beside it."""
    words, action = st.columns([3, 1], vertical_alignment="center", gap="large")
    with words:
        heading(HOME)
    return action


if __name__ == "__main__":
    show()
