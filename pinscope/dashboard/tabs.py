"""The browser tabs that look at this server: they draw in turn, and what a closed one held is given back."""

from __future__ import annotations

import asyncio
import gc
import importlib
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field

import streamlit as st
from streamlit import runtime
from streamlit.runtime.scriptrunner import get_script_run_ctx

from pinscope.dashboard.clients import bounded_clients
from pinscope.dashboard.pages import PAGES
from pinscope.dashboard.turns import Pace, Turns

CLOSED_SECONDS = 60.0
"""A tab that lost its connection finds all as it was within this time."""
_LOOK_SECONDS = 5.0
_LOADING_SWITCH_SECONDS = 0.0005


@dataclass
class _Tabs:
    """What all scripts and the server share."""

    turns: Turns = field(default_factory=Turns)
    pace: Pace = field(default_factory=Pace)
    connected_at: dict[str, float] = field(default_factory=dict)
    """When each session was last seen with a browser."""


_TABS = _Tabs()


@contextmanager
def drawn_in_turn() -> Iterator[None]:
    """Draw a page once it is its turn."""
    _TABS.connected_at[_session()] = time.monotonic()
    with _TABS.turns.turn():
        yield


def live(draw: Callable[..., None], seconds: float | None, *arguments: object) -> None:
    """Draw a part of a page now, and by itself again and again.

    Args:
        draw: draws it.
        seconds: from one drawing to the next, where there is time for it; ``None``: once.
        arguments: handed to ``draw``.
    """
    pace = None if seconds is None else _TABS.pace.seconds(seconds)

    def part() -> None:
        with _TABS.turns.turn(lambda taken: _count(pace, taken)):
            if seconds is not None and pace != _TABS.pace.seconds(seconds):
                st.rerun()  # the browser is given the new pace with the whole page
            draw(*arguments)

    st.fragment(part, run_every=pace)()


@asynccontextmanager
async def closing_tabs(app: object) -> AsyncIterator[None]:
    """While the server runs, give back what closed tabs held. Streamlit keeps it until another one comes or goes."""
    del app
    threading.Thread(target=_load_pages, name="pinscope-loader", daemon=True).start()
    task = asyncio.create_task(_close_tabs())
    with bounded_clients():
        yield
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def _load_pages() -> None:
    """Load what the pages need, so that none is late, what comes first first.

    Meanwhile browsers are served: they need Python's lock for a moment a hundred times. No garbage is looked for, as
    modules leave none: that would take a fifth of the time. Nor is it ever looked for among them again.
    """
    usual = sys.getswitchinterval()
    sys.setswitchinterval(_LOADING_SWITCH_SECONDS)
    gc.disable()
    try:
        for name in ("first_words", "state", "home_machine", *(page.path.stem for page in PAGES)):
            importlib.import_module(f"{__package__}.{name}")
    finally:
        gc.freeze()
        gc.enable()
        sys.setswitchinterval(usual)


async def _close_tabs() -> None:
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        now, server, closed = time.monotonic(), runtime.get_instance(), 0
        for session, connected_at in list(_TABS.connected_at.items()):
            if server.is_active_session(session):
                _TABS.connected_at[session] = now
            elif now - connected_at > CLOSED_SECONDS:
                server.close_session(session)
                del _TABS.connected_at[session]
                _TABS.pace.closed(session)
                closed += 1
        if closed:
            gc.collect()  # a page's objects refer to each other


def _count(pace: float | None, turn_seconds: float) -> None:
    if pace is not None:
        _TABS.pace.drawn(_session(), pace, turn_seconds)


def _session() -> str:
    context = get_script_run_ctx(suppress_warning=True)
    return context.session_id if context else ""
