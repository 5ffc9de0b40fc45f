"""Streamlit's settings for PinScope, as they stand in config.toml. `streamlit run app.py` reads the same file."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

_FILE = Path(__file__).with_name("config.toml")
ADDRESS = "127.0.0.1"
ALLOWED_HOSTS = ("localhost", ADDRESS)
"""Names under which a browser may ask for the dashboard; any other name is a rebound one."""


def _dotted(table: Mapping[str, object], before: str = "") -> Iterator[tuple[str, object]]:
    """A TOML table's settings as Streamlit names them, such as ``theme.light.textColor``."""
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _dotted(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


SETTINGS: Mapping[str, object] = dict(_dotted(tomllib.loads(_FILE.read_text(encoding="utf-8"))))
