"""The documentation that the dashboard serves: each page links to its own, and nothing comes from elsewhere."""

from __future__ import annotations

import re
from urllib.parse import urljoin

from playwright.sync_api import Page, expect

from tests.browser.conftest import Served, settle


def test_help_opens_the_page_that_explains_what_is_shown(page: Page, dashboard: Served) -> None:
    page.goto(f"{dashboard.url}/experiments")
    settle(page)
    page.get_by_role("radio", name="Overlap").or_(page.get_by_role("button", name="Overlap")).first.click()
    page.get_by_text("How it is measured").click()
    link = page.get_by_role("link", name="How to read it, and what to do")
    expect(link).to_have_attribute("href", re.compile("overlap"))  # the page was drawn again for the choice
    settle(page)
    expect(link).to_have_attribute("target", "_blank")  # Chromium may tell of the new tab much later
    of_the_page = page.get_by_role("link", name="Help with this page").get_attribute("href") or ""
    page.goto(urljoin(page.url, link.get_attribute("href") or ""))
    expect(page.get_by_role("heading", level=1)).to_have_text("Overlap")
    page.goto(urljoin(page.url, of_the_page))
    page.get_by_role("link", name="Bandwidth").first.click()
    picture = page.get_by_role("img")
    expect(picture).to_have_js_property("complete", True)
    assert picture.evaluate("image => image.naturalWidth") > 500
    expect(page.locator("body")).to_have_css("display", "grid")  # the style sheet is there
    missing = page.request.get(f"{dashboard.url}/manual/nothing.html")
    assert (missing.status, missing.text()) == (404, "There is no such page.")
