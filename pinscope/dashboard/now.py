"""Now: who holds pinned memory on this host at this moment, and what it costs the GPUs.

The browser draws it: its script asks the server once a second what changed. A page that Streamlit draws anew each
second cost the server 11 % of a core and 72 kB/s a tab; so it is well below one per cent.
"""

from __future__ import annotations

import html
import json

import streamlit as st

from pinscope.analysis.rules import STEADY_GROWTH
from pinscope.dashboard.pages import NOW
from pinscope.dashboard.routes import DEFAULT_WINDOW_SECONDS, LIVE_ROOT, VERSION, WINDOWS
from pinscope.dashboard.widgets import heading


def show() -> None:
    """Draw the page; see now.js for all below its heading."""
    heading(NOW)
    st.html(_mount(), unsafe_allow_javascript=True)


def _mount() -> str:
    """The place that the script fills, with what a reader may choose."""
    options = {
        "version": VERSION,
        "window": f"{DEFAULT_WINDOW_SECONDS:g}",
        "windows": json.dumps([[f"{seconds:g}", words] for seconds, words in WINDOWS.items()]),
        "growth": f"Processes whose pinned or locked memory grew steadily through the window: {STEADY_GROWTH}.",
    }
    data = " ".join(f'data-{name}="{html.escape(text)}"' for name, text in options.items())
    return f'<div class="pinscope-now" {data}></div><script src="{LIVE_ROOT}now.js?{VERSION}"></script>'


if __name__ == "__main__":
    show()
