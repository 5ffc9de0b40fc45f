"""Two runs are named, found, ticked and compared; links keep what was done."""

from __future__ import annotations

import re
from datetime import timedelta

from playwright.sync_api import Page, expect

from tests.browser.conftest import Served, settle
from tests.data import synthetic


def test_runs_are_named_found_by_tag_ticked_and_compared_and_links_keep_it(page: Page, dashboard: Served) -> None:
    rows = synthetic.bandwidth_rows(sizes=synthetic.SIZES[::4])
    first = synthetic.run("bandwidth", id="first")
    second = first.model_copy(update={"id": "second", "created_at": first.created_at + timedelta(hours=1)})
    dashboard.store.import_runs([(run, rows) for run in (first, second)])
    dashboard.store.update("second", tags=("nightly",))
    page.goto(f"{dashboard.url}/runs")
    settle(page)
    page.locator(".st-key-run-first").get_by_role("button", name="Edit").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("old driver")
    dialog.get_by_label("Tags").fill("nightly")
    dialog.get_by_role("button", name="Save").click()
    expect(page.get_by_text("old driver #nightly")).to_be_visible()
    assert dashboard.store.run("old driver").tags == ("nightly",)

    search = page.get_by_label("Search", exact=True)
    search.fill("#nightly")
    search.press("Enter")
    expect(page.get_by_text(re.compile("^2 of"))).to_be_visible()
    page.get_by_role("link", name="Bandwidth").first.click()
    page.wait_for_url("**/runs?run=second")
    page.get_by_role("link", name="All runs").click()
    page.wait_for_url("**/runs?search=%23nightly")
    expect(page.get_by_text(re.compile("^2 of"))).to_be_visible()

    for run_id in ("second", "first"):
        page.get_by_text(f"Compare {run_id}").locator("xpath=ancestor::label").click()
        settle(page)
    page.get_by_role("link", name="Compare the 2 ticked runs").click()
    page.wait_for_url("**/compare?a=first&b=second")
    verdict = page.get_by_role("heading", name="No difference")
    expect(verdict).to_be_visible()
    page.get_by_role("button", name="Swap sides").click()
    page.wait_for_url("**/compare?a=second&b=first")
    expect(verdict).to_be_visible()
    page.reload()
    expect(verdict).to_be_visible()
    expect(page.locator(".js-plotly-plot")).to_have_count(2)
