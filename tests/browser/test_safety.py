"""The dashboard keeps to itself, shows what it is given as text, and leaves nothing behind."""

from __future__ import annotations

import os
import signal

from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import Begin, Served, settle, until
from tests.browser.test_journey import run_in
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
    for path in ("runs", "runs?run=hostile"):
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


def test_a_second_run_waits_and_says_for_what_and_a_run_whose_process_is_killed_is_marked(
    page: Page, dashboard: Served, begin: Begin
) -> None:
    first = begin()
    with standing_still(dashboard.store, first.id):
        page.goto(f"{dashboard.url}/experiments")
        settle(page)
        page.get_by_role("button", name="Start (waits until the device is free)").click()
        page.wait_for_url("**/experiments?*run=*")
        second = run_in(page)
        expect(page.get_by_text(f"Waiting for run {first.id}")).to_be_visible()
        page.get_by_role("button", name="Cancel").first.click()
        until(lambda: dashboard.store.run(second).status == "cancelled")
    assert dashboard.store.run(first.id).status == "running"

    page.goto(f"{dashboard.url}/runs?run={first.id}")
    expect(page.get_by_role("button", name="Cancel")).to_be_visible()
    assert first.process is not None
    os.kill(first.process.pid, signal.SIGKILL)
    expect(page.get_by_text("The process that measured it ended before the run did")).to_be_visible()
    assert dashboard.store.run(first.id).observations > 0
