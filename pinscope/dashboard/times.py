"""Times as the reader's own clock shows them, with UTC on hover."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import streamlit as st


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
