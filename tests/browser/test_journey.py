"""What a person does: start a run from the form, watch it, come back to it, stop it, read it, take it away."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Page, expect

from pinscope.dashboard.pages import HOME, RUNS
from pinscope.probes.process import is_alive
from pinscope.records.run import Run
from pinscope.report.facts import open_document
from pinscope.report.write import render
from pinscope.store.bundle import read_bundle
from tests.browser.conftest import PATIENCE, Begin, Serve, Served, settle, until
from tests.data import synthetic
from tests.data.standing_still import standing_still


def fill(page: Page, dashboard: Served, time_limit: float) -> None:
    """Set bandwidth up on the host model: small copies, and ``time_limit`` seconds for each of its combinations."""
    page.goto(f"{dashboard.url}/experiments")
    settle(page)
    expect(page.get_by_text("host model (no GPU)").first).to_be_visible()
    fields = {"Copy sizes": "64 KiB, 1 MiB", "Precision (%)": "0.0001", "Time limit (s)": str(time_limit)}
    for label, text in fields.items():
        box = page.get_by_label(label, exact=True)
        box.fill(text)
        box.press("Enter")
        settle(page)


def start(page: Page, dashboard: Served) -> Run:
    """Press Start; the run that it started."""
    page.get_by_role("button", name="Start", exact=False).click()
    page.wait_for_url("**/experiments?*run=*")
    return dashboard.store.run(run_in(page))


def run_in(page: Page) -> str:
    """The run that the page's address names."""
    return parse_qs(urlsplit(page.url).query)["run"][0]


def test_a_run_is_started_watched_found_again_and_read(page: Page, dashboard: Served) -> None:
    fill(page, dashboard, 0.1)
    page.get_by_role("button", name="registered").click()  # a third of the combinations
    settle(page)
    page.get_by_role("button", name="Start", exact=False).click()
    until(lambda: any(run.observations for run in dashboard.store.runs(recordings=False)))
    (run,) = dashboard.store.runs(recordings=False)
    assert run.lab == "host"
    assert run.params["sizes"] == [2**16, 2**20]
    assert run.params["memory"] == ["pageable", "pinned"]
    until(lambda: dashboard.store.run(run.id).progress.fraction > 0)
    with standing_still(dashboard.store, run.id):
        page.wait_for_url("**/experiments?*run=*")
        assert run_in(page) == run.id
        page.reload()  # before Plotly is loaded, which takes a processor for seconds
        expect(page.get_by_role("button", name="Cancel")).to_be_visible()
        expect(page.get_by_text(f"{dashboard.store.run(run.id).progress.fraction:.0%} ·")).to_be_visible()
        page.locator(".js-plotly-plot").first.wait_for()  # what it has measured so far
        assert dashboard.store.run(run.id).status == "running"
        assert run_in(page) == run.id

    page.get_by_role("link", name="Open the result").click(timeout=2 * PATIENCE)
    expect(page.locator(".js-plotly-plot").first).to_be_visible()
    assert dashboard.store.run(run.id).status == "done"
    expect(page.get_by_text("Pinned to the device, 1 MiB", exact=True)).to_be_visible()
    expect(page.get_by_role("button", name="Cancel")).to_have_count(0)

    page.get_by_role("link", name="All runs").click()
    page.wait_for_url(f"{dashboard.url}/runs")
    page.get_by_role("link", name="Bandwidth", exact=False).first.click()
    page.wait_for_url(f"{dashboard.url}/runs?run=*")
    expect(page.get_by_role("link", name="All runs")).to_be_visible()
    page.go_back()
    expect(page.get_by_role("heading", name="Runs", exact=True)).to_be_visible()


CLICK_AND_CANCEL = """title => {
    const cancel = [...document.querySelectorAll("button")].find(button => button.innerText.includes("Cancel"));
    [...document.querySelectorAll("nav a, header a")].find(link => link.innerText.includes(title)).click();
    cancel.click();
}"""
"""Follow a link to another page, and at once click what the page before it still shows."""


def test_a_run_is_shown_wherever_runs_are_and_cancelled_only_from_the_page_that_is_shown(
    page: Page, dashboard: Served, begin: Begin
) -> None:
    run = begin()
    with standing_still(dashboard.store, run.id):
        page.goto(f"{dashboard.url}/experiments?run={run.id}")
        settle(page)
        for entry in (RUNS, HOME, RUNS):
            expect(page.get_by_role("button", name="Cancel")).to_be_visible()
            page.evaluate(CLICK_AND_CANCEL, entry.title)
            heading = page.get_by_role("heading", name=entry.heading or entry.title, exact=True)
            expect(heading).to_be_visible()
            page.wait_for_timeout(700)  # by then its progress has been drawn again, by itself
            expect(heading).to_be_visible()
            expect(page.get_by_role("progressbar")).to_be_visible()
    assert dashboard.store.run(run.id).status == "running"
    page.get_by_role("button", name="Cancel").click()
    until(lambda: dashboard.store.run(run.id).status != "running")
    expect(page.get_by_role("progressbar")).to_have_count(0)
    stopped = dashboard.store.run(run.id)
    assert stopped.status == "cancelled"
    assert stopped.observations > 0


def test_the_first_page_of_a_new_server_answers_clicks_and_no_child_survives_its_death(
    page: Page, serve: Serve, dashboard: Served, begin: Begin
) -> None:
    """Streamlit learns its pages while it draws the first one, so what it says of that one before is wrong."""
    run, other = begin(), serve()
    page.goto(f"{other.url}/runs?run={run.id}")
    page.get_by_role("button", name="Cancel").click()
    until(lambda: other.store.run(run.id).status == "cancelled")

    fill(page, other, 20)
    run = start(page, other)
    until(lambda: other.store.run(run.id).observations > 30)  # enough for a chart
    child = other.store.run(run.id).process
    assert child is not None
    page.goto("about:blank")
    os.kill(other.process.pid, signal.SIGKILL)
    other.process.wait()
    until(lambda: not is_alive(child), seconds=10)

    page.goto(f"{dashboard.url}/runs?run={run.id}")
    expect(page.get_by_text("This run was interrupted")).to_be_visible()
    expect(page.locator(".js-plotly-plot").first).to_be_visible()
    kept = dashboard.store.run(run.id)
    assert kept.status == "interrupted"
    assert kept.observations > 0


@pytest.fixture
def overlap(dashboard: Served) -> Run:
    """A finished run that every kind of report can be made of."""
    rows = synthetic.overlap_rows(balances=["balanced"], depths=[1, 2], every_combination=False, chunks=8)
    dashboard.store.import_runs([(synthetic.run("overlap"), rows)])
    run: Run = dashboard.store.run("syntheticoverlapcuda")
    return run


def download(page: Page, button: str, folder: Path) -> Path:
    """Press a button of the download menu, which stands open; the file that arrived."""
    with page.expect_download() as arriving:
        page.get_by_role("button", name=button).click()
    path = folder / arriving.value.suggested_filename
    arriving.value.save_as(path)
    return path


def open_downloads(page: Page, dashboard: Served, run: Run) -> None:
    page.goto(f"{dashboard.url}/runs?run={run.id}")
    settle(page)
    page.get_by_role("button", name="Download", exact=True).click()
    settle(page)  # opening runs the page's script again, and gives its files new addresses


def parts(report: bytes) -> list[bytes]:
    """What it consists of: of a chart that was drawn before, Plotly names the properties in another order."""
    return sorted(re.split(rb"[][{},]", report))


def test_a_run_is_taken_away_in_every_kind_of_file_and_brought_back_by_its_bundle(
    page: Page, dashboard: Served, overlap: Run, tmp_path: Path
) -> None:
    rows = dashboard.store.observations(overlap.id)
    open_downloads(page, dashboard, overlap)
    # How it opens with the network off is looked at in tests/integration/test_report_offline.py.
    report = download(page, "HTML report", tmp_path).read_bytes()
    assert parts(report) == parts(render([open_document(overlap, rows)], ".html"))
    document = json.loads(download(page, "Run, JSON", tmp_path).read_text())
    assert document["run"]["id"] == overlap.id
    assert document["observations"] == rows
    others = ("Markdown report", "Observations, CSV", "Observations, Parquet", "Timeline, Perfetto")
    assert all(download(page, button, tmp_path).stat().st_size for button in others)
    bundle = download(page, "Bundle for another PinScope", tmp_path)
    assert read_bundle(bundle) == [(overlap, rows)]

    page.get_by_text("Anonymous", exact=True).click()
    settle(page)
    for button in ("HTML report", "Run, JSON", "Bundle for another PinScope"):
        file = download(page, button, tmp_path)
        assert file.name.startswith(f"pinscope-{overlap.id}-anonymous.")
        ((anonymous, _),) = read_bundle(file) if file.suffix == ".pinscope" else ((None, None),)
        held = str(anonymous) if anonymous else file.read_text()
        assert "machine-" in held
        assert "synthetic-host" not in held

    page.keyboard.press("Escape")
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Keep it").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert dashboard.store.run(overlap.id)
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_text("Deleted run")).to_be_visible()
    assert dashboard.store.runs(recordings=False) == []

    page.get_by_text("Import or export a bundle").click()
    page.locator('input[type="file"]').set_input_files(bundle)
    expect(page.get_by_text("Imported 1")).to_be_visible()
    assert dashboard.store.run(overlap.id) == overlap
    assert dashboard.store.observations(overlap.id) == rows
    page.get_by_role("link", name="Overlap · Synthetic GPU").click()
    expect(page.locator(".js-plotly-plot").first).to_be_visible()
