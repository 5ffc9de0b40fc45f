"""Fleet: what was loaded ahead leaves nothing behind, and nothing of it is seen."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.browser.conftest import Served, settle
from tests.data.synthetic_fleet import SyntheticFleet

_SEEN = """() => {
  window.shown = 0;
  new MutationObserver(() => {
    const ahead = document.querySelector('.st-key-ahead');
    if (ahead) window.shown = Math.max(window.shown, ahead.offsetHeight);
  }).observe(document, { childList: true, subtree: true });
}"""
"""Notes the most pixels that what is loaded ahead took."""


def test_what_is_loaded_while_the_fleet_is_read_is_not_seen(page: Page, dashboard: Served) -> None:
    dashboard.store.import_runs((run, []) for run, _ in SyntheticFleet(8, 0, seed=3).runs())
    page.goto(f"{dashboard.url}/plan")
    settle(page)
    page.evaluate(_SEEN)
    page.get_by_role("link", name="Fleet", exact=True).first.click()
    expect(page.locator(".js-plotly-plot .scatterlayer path").first).to_be_visible()
    settle(page)
    expect(page.locator(".js-plotly-plot")).to_have_count(2)
    expect(page.get_by_test_id("stDataFrame")).to_have_count(2)
    expect(page.get_by_test_id("stCode")).to_have_count(1)
    expect(page.locator(".st-key-ahead")).to_have_count(0)
    assert page.evaluate("() => window.shown") == 0
