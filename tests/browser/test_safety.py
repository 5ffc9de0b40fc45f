"""The dashboard keeps to itself, shows what it is given as text, and leaves nothing behind."""

from __future__ import annotations

import os
import signal

from playwright.sync_api import Browser, Page, expect

from pinscope.probes.process import is_alive
from tests.browser.conftest import Begin, Serve, Served, settle, until
from tests.browser.test_journey import fill, run_in, start
from tests.conftest import REBOUND
from tests.data import synthetic
from tests.data.standing_still import standing_still

HOSTILE = (
    "<img src=http://evil.example/a.png> ![b](http://evil.example/b.png) [c](http://evil.example) "
    "http://evil.example www.evil.example <script>document.title='owned'</script> :red[d] $e$ :material/home:"
)


def test_a_rebound_name_is_refused(chromium: Browser, dashboard: Served) -> None:
    page = chromium.new_page()
    answer = page.goto(dashboard.url.replace("127.0.0.1", REBOUND))
    assert answer is not None
    assert answer.status == 400
    assert "PinScope" not in page.content()
    page.context.close()


def test_what_a_run_says_stays_text(page: Page, dashboard: Served) -> None:
    run = synthetic.run("bandwidth", id="hostile", status="failed", error=HOSTILE, notes=(HOSTILE,))
    environment = run.environment.model_copy(update={"host": HOSTILE, "cpu": HOSTILE})
    device = environment.devices[0].model_copy(update={"name": HOSTILE})
    environment = environment.model_copy(update={"devices": (device,)})
    dashboard.store.import_runs([(run.model_copy(update={"environment": environment}), synthetic.bandwidth_rows())])
    for path in ("", "runs", "runs?run=hostile"):
        page.goto(f"{dashboard.url}/{path}")
        settle(page)
        page.get_by_text("evil.example").first.wait_for()
        page.locator("summary").evaluate_all("all => all.forEach(one => one.click())")
        expect(page.locator("details:not([open])")).to_have_count(0)
        settle(page)
        shown = page.locator("body").inner_text().replace("\N{WORD JOINER}", "")
        assert HOSTILE in shown
        assert page.locator('a[href*="evil"], img[src*="evil"]').count() == 0
        assert page.title() != "owned"


def test_no_child_survives_a_killed_dashboard(page: Page, serve: Serve, dashboard: Served) -> None:
    other = serve()
    fill(page, other, 20)
    run = start(page, other)
    until(lambda: other.store.run(run.id).observations > 30)  # enough for a chart
    child = other.store.run(run.id).process
    assert child is not None
    assert is_alive(child)
    page.goto("about:blank")
    os.kill(other.process.pid, signal.SIGKILL)
    other.process.wait()
    until(lambda: not is_alive(child), 10)

    page.goto(f"{dashboard.url}/runs?run={run.id}")
    expect(page.get_by_text("This run was interrupted")).to_be_visible()
    expect(page.locator(".js-plotly-plot").first).to_be_visible()
    kept = dashboard.store.run(run.id)
    assert kept.status == "interrupted"
    assert kept.observations > 0


def test_a_killed_child_is_noticed_by_the_page_that_shows_it(page: Page, dashboard: Served) -> None:
    fill(page, dashboard, 20)
    run = start(page, dashboard)
    until(lambda: dashboard.store.run(run.id).observations > 0)
    child = dashboard.store.run(run.id).process
    assert child is not None
    os.kill(child.pid, signal.SIGKILL)
    expect(page.get_by_text("The process that measured it ended before the run did")).to_be_visible()
    assert dashboard.store.run(run.id).observations > 0


def test_a_second_run_waits_and_says_for_what(page: Page, dashboard: Served, begin: Begin) -> None:
    first = begin()
    with standing_still(dashboard.store, first.id):
        page.goto(f"{dashboard.url}/experiments")
        settle(page)
        page.get_by_role("button", name="Start (waits until the device is free)").click()
        page.wait_for_url("**/experiments?*run=*")
        second = run_in(page)
        expect(page.get_by_text(f"Waiting for run {first.id}")).to_be_visible()
        page.goto(f"{dashboard.url}/runs?run={second}")
        page.get_by_role("button", name="Cancel").click()
        until(lambda: dashboard.store.run(second).status == "cancelled")
    assert dashboard.store.run(first.id).status == "running"
