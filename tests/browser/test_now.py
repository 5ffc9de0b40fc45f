"""Now, in a real browser: it follows a real process once a second, and what a reader set stays as it was set.

One journey, as the first drawing of a page takes longer than all the rest.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from pinscope.units import format_bytes, parse_bytes
from tests.browser.conftest import Served, settle, until

KIB = 1024
MARK = "pinscope-now-test"
LOCKER = """
import ctypes, mmap, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.prctl(15, sys.argv[1].encode(), 0, 0, 0)  # PR_SET_NAME
memory = mmap.mmap(-1, 1 << 20)
address = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
for line in sys.stdin:
    libc.munlock(address, ctypes.c_size_t(1 << 20))
    assert libc.mlock(address, ctypes.c_size_t(int(line))) == 0, ctypes.get_errno()
    print("locked", flush=True)
"""
"""Locks as many bytes as each line says."""
COUNT_SHIFTS = """() => {
  window.shifts = [];
  new PerformanceObserver(list => list.getEntries().forEach(entry => {
    const nodes = entry.sources.map(source => source.node?.parentElement?.className);
    window.shifts.push(`${entry.value} ${nodes}`);
  })).observe({type: "layout-shift"});
}"""


class Locker:
    """A process that PinScope did not start, with locked memory."""

    def __init__(self, name: str, locked_bytes: int) -> None:
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, "-c", LOCKER, name, MARK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.lock(locked_bytes)

    def lock(self, locked_bytes: int) -> None:
        """Hold this much from now on."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{locked_bytes}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "locked\n"

    def end(self) -> None:
        """Let it go."""
        self.process.communicate(timeout=20)


@pytest.fixture
def lockers() -> Iterator[tuple[Locker, Locker]]:
    """The one with more locked memory comes later in the alphabet."""
    both = (Locker("zebra", 512 * KIB), Locker("<i>aardvark", 256 * KIB))
    yield both
    for one in both:
        one.end()


def as_of(page: Page) -> str:
    """When the snapshot that the page shows was taken, and what it cost: no two are alike."""
    return page.get_by_text("As of 20").inner_text().removeprefix("Paused. ")


def grid(page: Page) -> Locator:
    return page.get_by_role("table", name="Processes that only lock memory")


def held(page: Page) -> dict[str, int]:
    """Locked bytes by process, in the order of the table."""
    rows = grid(page).locator("tr").evaluate_all(
        "rows => rows.map(row => [...row.children].map(cell => cell.textContent.replace('?', '')))"
    )  # fmt: skip
    header, *cells = rows
    process, locked = header.index("Process"), header.index("Locked (VmLck)")
    return {row[process]: parse_bytes(row[locked]) for row in cells}


def times(page: Page) -> list[str]:
    """Labels of the chart's time axis."""
    labels = page.locator(".pinscope-now .chart text.time").evaluate_all("all => all.map(one => one.firstChild.data)")
    return sorted(labels)


def open_now(page: Page, dashboard: Served) -> None:
    """With only the processes of this test in the table."""
    page.goto(f"{dashboard.url}/now", wait_until="commit")
    settle(page)
    page.get_by_label("Filter", exact=True).fill(MARK)
    expect(page.get_by_text("2 of ")).to_be_visible()
    until(lambda: times(page))


def zoom(page: Page) -> list[str]:
    """Zoom the chart in, as a pinch does; the labels that it has then."""
    chart = page.locator(".pinscope-now .chart svg")
    chart.scroll_into_view_if_needed()
    before = times(page)
    box = chart.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.keyboard.down("Control")
    for _ in range(3):
        page.mouse.wheel(0, -300)
    page.keyboard.up("Control")
    until(lambda: times(page) and not set(times(page)) <= set(before))
    return times(page)


def test_a_reader_follows_a_process_in_two_tabs(
    page: Page, dashboard: Served, lockers: tuple[Locker, Locker], tmp_path: Path
) -> None:
    open_now(page, dashboard)
    the_chart_writes_sizes_as_the_cards_do(page)
    what_is_set_stays_while_the_page_follows(page, *lockers)

    other = page.context.new_page()
    open_now(other, dashboard)
    both_tabs_show_the_same_snapshots(page, other)
    a_paused_tab_stands_still_while_the_other_goes_on(page, other, lockers[1], tmp_path)

    lockers[0].end()
    for tab in (page, other):
        expect(tab.get_by_text("1 of ")).to_be_visible()


def the_chart_writes_sizes_as_the_cards_do(page: Page) -> None:
    sizes = [
        0,
        1536,
        1023 * KIB * KIB,
        349 * KIB * KIB // 2,
        351 * KIB * KIB // 2,
        2**30 - 1,
        5 * 2**28,
        7 * 2**40 // 3,
    ]
    written = "sizes => import('/live/now_chart.js').then(chart => sizes.map(size => chart.bytesText(size)))"
    assert page.evaluate(written, sizes) == list(map(format_bytes, sizes))


def what_is_set_stays_while_the_page_follows(page: Page, zebra: Locker, aardvark: Locker) -> None:
    """Sort, choice, zoom and filter, through three drawings, in which nothing moves."""
    until(lambda: list(held(page).items()) == [(zebra.name, 512 * KIB), (aardvark.name, 256 * KIB)])
    grid(page).get_by_role("button", name="Process").click()
    until(lambda: list(held(page)) == [aardvark.name, zebra.name])
    grid(page).get_by_role("button", name=aardvark.name).click()
    expect(page.get_by_text(f"{aardvark.name}, pid")).to_be_visible()
    expect(page.get_by_role("row", name="Locked (VmLck) 256 KiB")).to_be_visible()
    zoomed = zoom(page)
    page.evaluate(COUNT_SHIFTS)

    seen: set[str] = set()
    for amount in (768 * KIB, 640 * KIB):
        aardvark.lock(amount)
        until(lambda amount=amount: held(page) == {aardvark.name: amount, zebra.name: 512 * KIB})  # type: ignore[misc]
        seen.add(as_of(page))
    until(lambda: seen.add(as_of(page)) or len(seen) >= 3)  # type: ignore[func-returns-value]

    assert page.evaluate("() => window.shifts") == []
    assert times(page) == zoomed
    assert list(held(page)) == [aardvark.name, zebra.name]
    assert page.get_by_label("Filter", exact=True).input_value() == MARK
    expect(page.get_by_text(f"{aardvark.name}, pid")).to_be_visible()
    expect(page.get_by_text("2 of ")).to_be_visible()


def both_tabs_show_the_same_snapshots(page: Page, other: Page) -> None:
    """Two samplers would never take the same processor time at the same moment twice."""
    seen: tuple[set[str], set[str]] = (set(), set())
    until(lambda: [seen[0].add(as_of(page)), seen[1].add(as_of(other))] and len(seen[0] & seen[1]) >= 2)  # type: ignore[func-returns-value]


def a_paused_tab_stands_still_while_the_other_goes_on(page: Page, other: Page, aardvark: Locker, folder: Path) -> None:
    """And what it stands at can be downloaded."""
    page.get_by_label("Pause", exact=True).check()
    expect(page.get_by_text("Paused.")).to_be_visible()
    until(lambda: (page.get_by_role("button", name="Snapshot (JSON)").get_attribute("href") or "").startswith("blob:"))
    still, rows = as_of(page), held(page)
    aardvark.lock(8 * KIB)
    until(lambda: held(other)[aardvark.name] == 8 * KIB)
    assert as_of(page) == still
    assert held(page) == rows
    assert rows[aardvark.name] == 640 * KIB
    grid(page).get_by_role("button", name="zebra").click()
    expect(page.get_by_text("zebra, pid")).to_be_visible()
    expect(page.get_by_role("row", name="Locked (VmLck) 512 KiB")).to_be_visible()

    with page.expect_download() as arriving:
        page.get_by_role("button", name="Snapshot (JSON)").click()
    arriving.value.save_as(folder / "snapshot.json")
    document = json.loads((folder / "snapshot.json").read_text())
    locked = {one["pid"]: one["locked_bytes"] for one in document["holders"]}
    assert locked[aardvark.process.pid] == 640 * KIB

    page.get_by_label("Pause", exact=True).uncheck()
    until(lambda: held(page)[aardvark.name] == 8 * KIB)
