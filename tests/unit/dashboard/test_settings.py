"""The settings are safe, and the same however the dashboard is started."""

from __future__ import annotations

from pathlib import Path

from streamlit import config

from pinscope.charts.theme import COLOURS, SCHEMES, SchemeName
from pinscope.dashboard.middleware import ADDRESS, ALLOWED_HOSTS, SETTINGS
from pinscope.records.base import UPLOAD_MIB

ROOT = Path(__file__).parents[3]


def test_streamlit_run_app_has_the_same_settings() -> None:
    own = ROOT / "pinscope" / "dashboard" / "config.toml"
    assert (ROOT / ".streamlit" / "config.toml").resolve() == own.resolve()
    assert SETTINGS["theme.dark.backgroundColor"] == "#0e1117"


def test_pages_have_the_colours_of_the_charts() -> None:
    schemes: tuple[tuple[SchemeName, str], ...] = (("light", "pinned"), ("dark", "copy"))
    for scheme, primary in schemes:
        assert SETTINGS[f"theme.{scheme}.primaryColor"] == COLOURS[primary]
        assert SETTINGS[f"theme.{scheme}.textColor"] == SCHEMES[scheme].text
        assert SETTINGS[f"theme.{scheme}.borderColor"] == SCHEMES[scheme].grid


def test_what_stays_in_view_on_now_has_the_background_of_the_page() -> None:
    light, dark = (SETTINGS[f"theme.{scheme}.backgroundColor"] for scheme in ("light", "dark"))
    style = (ROOT / "pinscope" / "dashboard" / "now.css").read_text()
    assert f"--page: light-dark({light}, {dark});" in style


def test_an_upload_may_be_as_large_as_a_bundle_that_is_read() -> None:
    assert SETTINGS["server.maxUploadSize"] == UPLOAD_MIB


def test_streamlit_knows_every_setting() -> None:
    assert set(SETTINGS) <= set(config.get_config_options())


def test_the_dashboard_is_private() -> None:
    assert SETTINGS["server.address"] == ADDRESS == "127.0.0.1"
    assert SETTINGS["server.allowedHosts"] == list(ALLOWED_HOSTS)
    assert SETTINGS["server.enableCORS"] is True
    assert SETTINGS["server.enableXsrfProtection"] is True
    assert SETTINGS["global.developmentMode"] is False  # it would be on where packages lie outside of site-packages
    assert SETTINGS["browser.gatherUsageStats"] is False
    assert SETTINGS["client.showErrorDetails"] == "none"
