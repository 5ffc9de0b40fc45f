"""Streamlit's settings for PinScope: reachable from this machine only, and silent towards everybody else.

`.streamlit/config.toml` repeats them for `streamlit run app.py`; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Mapping

from pinscope.charts.theme import COLOURS, SCHEMES
from pinscope.records.limits import UPLOAD_MIB

ADDRESS = "127.0.0.1"
ALLOWED_HOSTS = ("localhost", ADDRESS)
"""Names under which a browser may ask for the dashboard; any other name is a rebound one."""

SAFETY: Mapping[str, object] = {
    # Streamlit takes itself for its own source tree where it lies outside site-packages (pip --target, Nix).
    "global.developmentMode": False,
    "server.address": ADDRESS,
    "server.allowedHosts": list(ALLOWED_HOSTS),
    "server.baseUrlPath": "",
    "server.corsAllowedOrigins": [],
    "server.enableCORS": True,
    "server.enableXsrfProtection": True,
    "server.enableStaticServing": False,
    "server.enableAgentApi": False,
    "server.maxUploadSize": UPLOAD_MIB,
    "server.headless": True,
    "server.fileWatcherType": "none",
    "browser.gatherUsageStats": False,
    "client.allowedOrigins": [],
    "client.toolbarMode": "minimal",
    "client.showErrorDetails": "none",
    "client.showErrorLinks": False,
    "runner.magicEnabled": False,
}
"""What keeps the dashboard private, and its server quiet."""

LOAD: Mapping[str, object] = {
    # A whole collection after each drawing took four fifths of the processor time of all drawings, and held up every
    # other tab meanwhile. Python collects by itself, in generations.
    "runner.postScriptGC": False,
}
"""What lets many tabs draw at the same time."""

LOOK: Mapping[str, object] = {
    "theme.baseRadius": "0.6rem",
    "theme.paddingTop": "2.2rem",
    "theme.headingFontWeights": [650, 600, 600],
    "theme.headingFontSizes": ["2.1rem", "1.45rem", "1.15rem"],
    "theme.metricValueFontSize": "1.5rem",
    "theme.light.primaryColor": COLOURS["pinned"],
    "theme.light.backgroundColor": "#ffffff",
    "theme.light.secondaryBackgroundColor": "#f5f7fa",
    "theme.light.textColor": SCHEMES["light"].text,
    "theme.light.borderColor": SCHEMES["light"].grid,
    "theme.dark.primaryColor": COLOURS["copy"],
    "theme.dark.backgroundColor": "#0e1117",
    "theme.dark.secondaryBackgroundColor": "#1a1f29",
    "theme.dark.textColor": SCHEMES["dark"].text,
    "theme.dark.borderColor": SCHEMES["dark"].grid,
}
"""Colours and sizes, light and dark."""

SETTINGS: Mapping[str, object] = {**SAFETY, **LOAD, **LOOK}
