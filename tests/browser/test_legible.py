"""What a page says can be read: nothing is cut off, on a wide screen and on a phone."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import Page, expect

from tests.browser.conftest import Served, settle, until

CUT_OFF = """
metrics => metrics.flatMap(metric => {
  const card = metric.getBoundingClientRect();
  return [...metric.querySelectorAll("p")].filter(text => {
    const range = document.createRange();
    range.selectNodeContents(text);
    const drawn = range.getBoundingClientRect();
    return drawn.right > card.right || drawn.bottom > card.bottom
      || getComputedStyle(text).textOverflow === "ellipsis";
  }).map(text => text.textContent);
})
"""
"""Texts of figures that stand out of their cards, or end in an ellipsis."""

WHOLE = "part => part.scrollWidth <= part.clientWidth + 1 || getComputedStyle(part).overflow == 'visible'"
"""Of an element: its text is not cut off."""


def test_names_of_figures_and_words_in_their_place_are_whole(new_page: Callable[..., Page], dashboard: Served) -> None:
    page = new_page()
    access = next(run for run in dashboard.store.runs() if run.recording and run.experiment == "access")
    page.goto(f"{dashboard.url}/runs?run={access.id}")
    settle(page)
    page.get_by_text("More figures").click()
    expect(page.get_by_test_id("stMetric").filter(has_text="explicit copy").first).to_be_visible()
    for width in (390, 1400):
        new_page(width)
        until(lambda: page.get_by_test_id("stMetric").evaluate_all(CUT_OFF) == [])  # once all is laid out
    new_page(700)
    page.goto(f"{dashboard.url}/traces")
    settle(page)
    download = page.get_by_test_id("stPopover").get_by_role("button").first  # beside a verdict
    expect(download).to_be_visible()
    until(lambda: download.evaluate("button => [...button.querySelectorAll('p, div')].every(" + WHOLE + ")"), seconds=5)
