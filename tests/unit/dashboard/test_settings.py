"""The settings are safe, and the same however the dashboard is started."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from streamlit import config

from pinscope.dashboard.settings import SETTINGS

ROOT = Path(__file__).parents[3]


def flat(table: dict[str, Any], before: str = "") -> dict[str, Any]:
    """Nested TOML tables as dotted names."""
    found: dict[str, Any] = {}
    for name, value in table.items():
        found |= flat(value, f"{before}{name}.") if isinstance(value, dict) else {f"{before}{name}": value}
    return found


def test_streamlit_run_app_has_the_same_settings() -> None:
    assert flat(tomllib.loads((ROOT / ".streamlit" / "config.toml").read_text())) == dict(SETTINGS)


def test_streamlit_knows_every_setting() -> None:
    assert set(SETTINGS) <= set(config.get_config_options())


def test_the_dashboard_is_private() -> None:
    assert SETTINGS["server.address"] == "127.0.0.1"
    assert SETTINGS["server.allowedHosts"] == ["localhost", "127.0.0.1"]
    assert SETTINGS["server.enableCORS"] is True
    assert SETTINGS["server.enableXsrfProtection"] is True
    assert SETTINGS["browser.gatherUsageStats"] is False
    assert SETTINGS["client.showErrorDetails"] == "none"


def test_no_drawing_ends_in_a_whole_garbage_collection_that_holds_up_all_tabs() -> None:
    assert SETTINGS["runner.postScriptGC"] is False
