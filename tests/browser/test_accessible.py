"""Pages and reports can be used by everybody: axe-core finds nothing serious, and charts have words."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from pinscope.store.recordings import recorded_runs
from tests.browser.conftest import PATIENCE, Served, Watched, settle, until
from tests.data import synthetic
from tests.unit.report.test_readable import page as report

SERIOUS = ("serious", "critical")
VIOLATIONS = """
async rules => (await axe.run(
  {exclude: [[".main-svg"]]}, {resultTypes: ["violations"], ...(rules ? {runOnly: rules} : {})})).violations
  .map(one => [one.id, one.impact, one.nodes.map(node => node.html.slice(0, 200))])
"""
"""The inside of a Plotly chart is one drawing, with words of its own: its thousand parts would take axe a minute."""


IS_DARK = """
() => [document.querySelector("[data-testid=stApp]"), document.body, document.documentElement]
  .map(one => one && getComputedStyle(one).backgroundColor.match(/[\\d.]+/g).map(Number))
  .some(colour => colour && colour[3] !== 0 && colour[0] + colour[1] + colour[2] < 200)
"""
"""Whether what the page stands on is dark."""


@pytest.fixture
def unguarded(chromium: Browser, dashboard: Served) -> Iterator[Page]:
    """A page that lets axe in: the policy of the dashboard allows no script but its own."""
    del dashboard  # closed before the server ends
    context = chromium.new_context(viewport={"width": 1440, "height": 1000}, bypass_csp=True)
    context.set_default_timeout(PATIENCE)
    expect.set_options(timeout=PATIENCE)
    watched = Watched()
    watched.watch(context)
    yield context.new_page()
    context.close()
    assert watched.complaints == []


def violations(page: Page, address: str) -> dict[str, list[object]]:
    """What is wrong on a page in the light, and in the dark, which it follows as it stands; nothing if nothing is."""
    package = find_spec("axe_playwright_python")
    assert package is not None
    assert package.origin is not None
    page.emulate_media(color_scheme="light")
    page.goto(address)
    if "/manual/" in address:
        page.locator("h1").first.wait_for()
    elif address.startswith("file:"):
        expect(page.locator("html[data-drawn]")).to_be_attached()
    else:
        settle(page)
    page.add_script_tag(content=Path(package.origin).with_name("axe.min.js").read_text())
    wrong = {"light": _violations(page, None)}
    page.emulate_media(color_scheme="dark")
    until(lambda: page.evaluate(IS_DARK))
    wrong["dark"] = _violations(page, ["color-contrast"])  # all else is as in the light
    assert page.get_by_test_id("stException").count() == 0
    return {scheme: violations for scheme, violations in wrong.items() if violations}


def _violations(page: Page, rules: list[str] | None) -> list[object]:
    """What axe finds once nothing moves or fades any more."""
    until(lambda: page.evaluate("document.getAnimations().every(one => one.playState !== 'running')"))
    return [violation for violation in page.evaluate(VIOLATIONS, rules) if violation[1] in SERIOUS]


@pytest.mark.parametrize(
    "paths",
    [("runs",), pytest.param(("", "now", "experiments", "traces", "plan", "manual/"), marks=pytest.mark.release)],
)
def test_no_page_has_a_serious_violation_and_charts_have_words(
    unguarded: Page, dashboard: Served, paths: tuple[str, ...]
) -> None:
    """The page of a run last: one that measured, with code to paste, and one that watched."""
    shipped = {run.experiment: run.id for run in recorded_runs()}
    kinds = ("timeline", "pinning_strategy") if len(paths) > 1 else ("pinning_strategy",)
    hosts = [run.id for run in recorded_runs() if run.experiment == "pinning_strategy"]
    compared = (f"compare?a={hosts[0]}&b={hosts[1]}",) if len(paths) > 1 else ()
    every = (*paths, *compared, *(f"runs?run={shipped[kind]}" for kind in kinds))
    wrong = {path: violations(unguarded, f"{dashboard.url}/{path}") for path in every}
    assert {path: all_of_it for path, all_of_it in wrong.items() if all_of_it} == {}
    expect(unguarded.get_by_role("figure", name="Time to pin 16 GiB: ")).to_be_visible()


@pytest.mark.release
def test_no_report_has_a_serious_violation_and_its_charts_have_words(unguarded: Page, tmp_path: Path) -> None:
    whole = synthetic.document_of("bandwidth", synthetic.bandwidth_rows(repeats=2))
    tables = whole.reading.tables
    short = tuple(table.model_copy(update={"rows": table.rows[:3]}) for table in tables)  # each row is like the others
    reading = whole.reading.model_copy(update={"tables": short})
    document = replace(whole, charts=whole.charts[:3], reading=reading)
    target = tmp_path / "report.html"
    target.write_text(report(document))
    address = f"file://{os.fspath(target)}"
    assert violations(unguarded, address) == {}
    words = unguarded.locator(".plot").evaluate_all("all => all.map(one => [one.role, one.ariaLabel])")
    assert words == [["figure", chart.alt] for chart in document.charts]
