"""A figure over runs: its step is named, and the address keeps what was chosen."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from tests.browser.conftest import Served, settle
from tests.data.stepping_runs import add_stepping_runs


def test_a_step_is_named_and_the_address_keeps_the_series(page: Page, dashboard: Served) -> None:
    step = add_stepping_runs(dashboard.store)
    page.goto(f"{dashboard.url}/trend?experiment=bandwidth&series=run-00")
    settle(page)
    expect(page.get_by_role("heading", name=f"from run {step} on")).to_be_visible()
    expect(page.locator(".js-plotly-plot")).to_have_count(1)
    page.get_by_label("Machine and parameters").click()
    page.get_by_role("option", name=re.compile("1 run ")).click()
    page.wait_for_url("**series=quick**")
    expect(page.get_by_text("has no figure to follow")).to_be_visible()
