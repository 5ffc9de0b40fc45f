"""Text on pages: what comes from outside as plain Markdown, times, titles, errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import streamlit as st

from pinscope.dashboard.pages import PageEntry
from pinscope.errors import PinScopeError, StoreFailed, UnknownName
from pinscope.experiments.registry import find_reader
from pinscope.records.run import LAB_TITLES, Run
from pinscope.text import one_line

_PUNCTUATION = re.compile(r"([!-/:-@\[-`{-~])")
_READ_LATER = re.compile(r"(:(?=[\w+/-]+:)|:(?=//)|\bwww(?=\.)|@)")
_QUANTITY = re.compile(r"(?<=\d) (?=(?:[KMGTP]iB|[KMGT]?B|ns|µs|ms|s|\\%|×)(?!\w))|(?<=±) (?=\d)")
"""In escaped text the space between a number and its unit, where a line must not end."""
_WORD_JOINER = "\N{WORD JOINER}"


def sentence(text: str) -> str:
    """``text`` as a sentence of its own: a capital first, a full stop last."""
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?", ":")) else ".")


def plain(text: str) -> str:
    """``text`` on one line, so that Markdown shows it as it stands: no HTML, link, image, formula, icon or colour.

    Every sign of ASCII punctuation is escaped, as CommonMark allows (section 2.4). Icons (``:name:``) and bare
    addresses are looked for after the escapes are resolved; an invisible word joiner keeps those from being found.
    """
    return _PUNCTUATION.sub(r"\\\1", _READ_LATER.sub(rf"\1{_WORD_JOINER}", one_line(text)))


def prose(text: str) -> str:
    """As :func:`plain`, for sentences: no line ends between a number and its unit."""
    return _QUANTITY.sub("\N{NO-BREAK SPACE}", plain(text))


def own_time(moment: datetime) -> str:
    """Markdown with HTML: ``2026-11-21 04:15`` on the reader's clock, and UTC while the pointer rests on it."""
    utc = f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    zone = _zone()
    text = f"{moment.astimezone(zone or UTC):%Y-%m-%d %H:%M}" + ("" if zone else " UTC")
    return f'<time datetime="{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}" title="{utc}">{text}</time>'


def _zone() -> tzinfo | None:
    """The browser's. A host may lack the table of zones; ``None``: the browser has not said where it is."""
    name, minutes = st.context.timezone, st.context.timezone_offset
    try:
        return ZoneInfo(name) if name else None
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None if minutes is None else timezone(timedelta(minutes=-minutes))


def experiment_title(name: str) -> str:
    """The experiment's title, or its bare name if this version does not know it."""
    try:
        return find_reader(name).kind.title
    except UnknownName:
        return name


def title(run: Run) -> str:
    """``Bandwidth · NVIDIA H200``; for a run without a GPU the host model or the live view."""
    return f"{experiment_title(run.experiment)} · {run.gpu.name if run.gpu else LAB_TITLES[run.lab]}"


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


def heading(page: PageEntry) -> None:
    """Draw a page's heading and its opening."""
    st.title(page.heading, anchor=False)
    if page.opening:
        st.markdown(page.opening)
