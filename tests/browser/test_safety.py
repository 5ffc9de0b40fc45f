"""The dashboard keeps to itself, shows what it is given as text, and leaves nothing behind."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.browser.conftest import Served, settle
from tests.data import synthetic

HOSTILE = (
    "<img src=http://evil.example/a.png> ![b](http://evil.example/b.png) [c](http://evil.example) "
    "http://evil.example www.evil.example <script>document.title='owned'</script> :red[d] $e$ :material/home:"
)


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
