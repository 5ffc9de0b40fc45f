"""What PinScope raises on purpose, as one line on the page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import streamlit as st

from pinscope.dashboard.plain import plain, sentence
from pinscope.errors import PinScopeError, StoreFailed


def show_error(error: PinScopeError) -> None:
    """The error's own line."""
    title = "The database cannot be used" if isinstance(error, StoreFailed) else None
    st.error(plain(sentence(str(error))), title=title, icon=":material/error:")


@contextmanager
def errors_shown() -> Iterator[None]:
    """Show what PinScope raises on purpose as one line, never a traceback, in the place where the block draws."""
    try:
        yield
    except PinScopeError as error:
        show_error(error)
