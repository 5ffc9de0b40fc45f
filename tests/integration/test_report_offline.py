"""The HTML report in a real Chromium with the network off: drawn, legible, printable, and silent."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Request

import pinscope
from pinscope.charts.theme import SCHEMES
from pinscope.report.facts import Document, open_document
from pinscope.report.write import run_document, write_report
from pinscope.store.bundle import read_bundle
from tests.data import synthetic
from tests.data.waiting import until

pytestmark = pytest.mark.browser

PAPER_WIDTH, SMALL_WIDTH = 680, 600
"""Pixels between the margins of an A4 page, and of a chart before it is made smaller, as the page's script has them."""
LOCAL = ("file:", "data:", "blob:")


@pytest.fixture(scope="module")
def browser(chromium: Browser) -> Browser:
    return chromium


class Reader:
    """A tab that is cut off, and everything it complained of or asked for: one for all, which compiles Plotly once."""

    def __init__(self, browser: Browser) -> None:
        self.context = browser.new_context()
        self.context.set_offline(True)
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page: Page = self.context.new_page()
        self.page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(f"dialog: {dialog.message}"))
        self.page.on("request", self._asked)

    def _asked(self, request: Request) -> None:
        if not request.url.startswith(LOCAL):
            self.requests.append(request.url)

    def open(self, path: Path) -> Page:
        """The report, with all its charts drawn; one that is open already stays so."""
        if self.page.url != path.as_uri():
            self.page.goto(path.as_uri())
        self.page.wait_for_selector("html[data-drawn]", state="attached", timeout=120_000)
        return self.page

    def begin(self, width: int, scheme: Any) -> None:
        """Make the tab so wide, and light or dark, for another test."""
        self.page.set_viewport_size({"width": width, "height": 900})
        self.page.emulate_media(color_scheme=scheme, media="screen")
        self.complaints.clear()
        self.requests.clear()

    def end(self) -> None:
        """The report must have been silent."""
        assert self.complaints == []
        assert self.requests == []


@pytest.fixture(scope="module")
def tab(browser: Browser) -> Iterator[Reader]:
    opened = Reader(browser)
    yield opened
    opened.context.close()


@pytest.fixture
def reader(tab: Reader, request: pytest.FixtureRequest) -> Iterator[Reader]:
    """A silent page 1100 pixels wide and light, unless the test asks otherwise."""
    tab.begin(*getattr(request, "param", (1100, "light")))
    yield tab
    tab.end()


SYNTHETIC: dict[str, Callable[[], Document]] = {
    "bandwidth": lambda: synthetic.document("bandwidth"),
    "overlap": lambda: synthetic.document("overlap"),
    "without rows": lambda: synthetic.document_of("bandwidth", [], status="failed", error="no GPU answered"),
}
RECORDINGS = {path.stem: path for path in sorted((Path(pinscope.__file__).parent / "recordings").glob("*.pinscope"))}


def documents(name: str) -> list[Document]:
    """A synthetic run, or all runs of a recording."""
    if name in SYNTHETIC:
        return [SYNTHETIC[name]()]
    return [open_document(run, rows) for run, rows in read_bundle(RECORDINGS[name])]


def short(name: str, charts: int = 2) -> Document:
    """A synthetic run with its first charts only, where the number of charts does not matter."""
    whole = SYNTHETIC[name]()
    return replace(whole, charts=whole.charts[:charts])


def written(folder: Path, *documents: Document) -> Path:
    path = folder / "report.html"
    write_report(path, documents)
    return path


def one_of_each_kind() -> list[list[str]]:
    """A recording of each kind of run, and a run without rows.

    Several make one report: to load Plotly takes as long as to draw them. The last is the one that is printed then.
    """
    kinds = {name.split("-")[0]: name for name in RECORDINGS}
    printed = kinds.pop("bandwidth")
    names = ["without rows", *kinds.values()]
    return [names[: len(names) // 2], names[len(names) // 2 :], [printed]]


@pytest.fixture(scope="module")
def report_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, list[Document]]]:
    """Writes the report of these names, once."""

    @lru_cache
    def report_of(*names: str) -> tuple[Path, list[Document]]:
        several = [document for name in names for document in documents(name)]
        return written(tmp_path_factory.mktemp("reports"), *several), several

    return report_of


@pytest.mark.parametrize("names", one_of_each_kind(), ids=" ".join)
def test_a_report_opens_without_network_and_is_legible_on_a_desk_and_on_a_phone(
    names: list[str], reader: Reader, report_of: Callable[..., tuple[Path, list[Document]]]
) -> None:
    report, several = report_of(*names)

    page = reader.open(report)

    assert page.locator(".plot svg.main-svg:first-child").count() == sum(len(document.charts) for document in several)
    drawn = page.locator(".plot").evaluate_all(
        "all => all.map(plot => [plot.querySelectorAll('g.trace, g.hm').length, plot.data.length])"
    )
    assert all(traces == meant > 0 for traces, meant in drawn)
    for width in (1100, 360):
        page.set_viewport_size({"width": width, "height": 900})
        becomes_true(page, DRAWN_TO_WIDTH)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(CUT_OFF) == []
        assert page.evaluate(COVERED) == []
        assert page.evaluate(OVERFLOWING) == []


def becomes_true(page: Page, expression: str, argument: object = None) -> None:
    """Ask again and again from outside: the report's policy forbids the eval with which Playwright waits inside."""
    until(lambda: page.evaluate(expression, argument))


DRAWN_TO_WIDTH = """() => Array.from(document.querySelectorAll(".plot")).every(plot =>
  Math.abs(plot.querySelector("svg.main-svg").getBoundingClientRect().width - plot.clientWidth) < 1)"""
# Drawings that are higher than the room they have: they lie on their captions.
OVERFLOWING = """() => Array.from(document.querySelectorAll(".plot")).filter(plot =>
  plot.querySelector("svg.main-svg").getBoundingClientRect().height > plot.clientHeight + 1
).map(plot => plot.ariaLabel)"""
# Titles, axis titles, tick labels, legend entries and texts at bars that leave the drawing.
CUT_OFF = """() => Array.from(document.querySelectorAll(".plot")).flatMap(plot => {
  const frame = plot.querySelector("svg.main-svg").getBoundingClientRect();
  return Array.from(plot.querySelectorAll("svg.main-svg text")).filter(text => {
    const box = text.getBoundingClientRect();
    return box.width && (box.left < frame.left - 1 || box.right > frame.right + 1
      || box.top < frame.top - 1 || box.bottom > frame.bottom + 1);
  }).map(text => text.textContent);
})"""
# Pairs of texts around the panels that lie on each other by more than two pixels.
COVERED = """() => Array.from(document.querySelectorAll(".plot")).flatMap(plot => {
  const texts = Array.from(plot.querySelectorAll(
    "text.annotation-text, text[class$=title], g[class$=tick] text, text.legendtext"
  ));
  const boxes = texts.map(text => text.getBoundingClientRect());
  return texts.flatMap((text, i) => texts.slice(i + 1).filter((other, k) => {
    const [a, b] = [boxes[i], boxes[i + 1 + k]];
    return a.width && b.width
      && Math.min(a.right, b.right) - Math.max(a.left, b.left) > 2
      && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 2;
  }).map(other => `${text.textContent} / ${other.textContent}`));
})"""


def test_bandwidth_prints_on_five_pages_the_first_with_the_verdict_and_its_chart(
    reader: Reader, report_of: Callable[..., tuple[Path, list[Document]]]
) -> None:
    page = reader.open(report_of("bandwidth-h200")[0])
    becomes_true(page, DRAWN_TO_WIDTH)
    page.emulate_media(media="print")
    page.set_viewport_size({"width": PAPER_WIDTH, "height": 1009})
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    becomes_true(page, "document.querySelector('figure').getBoundingClientRect().bottom < 1009")
    assert page.evaluate("document.querySelector('.verdict').getBoundingClientRect().bottom") < 400

    # After the look at its layout: a page that was printed is laid out for the screen again, sooner or later.
    printed = page.pdf(prefer_css_page_size=True)
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) <= 5


HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of two runs, for all that is asked of any report; what people wrote into one is hostile."""
    hostile = synthetic.changed(short("bandwidth", charts=1), notes=(HOSTILE,), status="failed", error=HOSTILE)
    return written(tmp_path_factory.mktemp("both"), short("overlap"), hostile)


def rgb(colour: str) -> str:
    """``#rrggbb`` as a browser tells it."""
    return f"rgb{tuple(int(colour[start : start + 2], 16) for start in (1, 3, 5))}"


def wait_for_texts(page: Page, colour: str) -> None:
    """Wait until the tick labels of every chart have that colour: a chart is drawn anew when the page's changes."""
    becomes_true(
        page,
        """colour => Array.from(document.querySelectorAll(".plot")).every(plot => {
          const texts = Array.from(plot.querySelectorAll(".xaxislayer-above text"));
          return texts.length && texts.every(text => getComputedStyle(text).fill === colour);
        })""",
        rgb(colour),
    )


@pytest.mark.parametrize("reader", [(1100, "dark")], indirect=True)
def test_page_and_charts_follow_light_and_dark(reader: Reader, both: Path) -> None:
    page = reader.open(both)
    background = "getComputedStyle(document.documentElement).backgroundColor"

    wait_for_texts(page, SCHEMES["dark"].text)
    assert page.evaluate(background) == "rgb(14, 17, 23)"

    page.emulate_media(color_scheme="light")
    becomes_true(page, f"{background} === 'rgb(255, 255, 255)'")
    wait_for_texts(page, SCHEMES["light"].text)


@pytest.mark.parametrize("reader", [(1400, "dark")], indirect=True)
def test_on_paper_charts_are_light_and_fit_the_page_and_then_come_back(reader: Reader, both: Path) -> None:
    page = reader.open(both)
    state = """() => Array.from(document.querySelectorAll(".plot")).map(plot => [
      plot.querySelector("svg.main-svg").getBoundingClientRect().width,
      (text => text && getComputedStyle(text).fill)(plot.querySelector(".xaxislayer-above text"))])"""
    becomes_true(page, DRAWN_TO_WIDTH)
    wait_for_texts(page, SCHEMES["dark"].text)
    page.evaluate(f"addEventListener('beforeprint', () => {{ window.onPaper = ({state})() }})")
    before = page.evaluate(state)

    printed = page.pdf(prefer_css_page_size=True)

    on_paper = page.evaluate("window.onPaper")
    assert [width for width, _ in on_paper] == [PAPER_WIDTH, SMALL_WIDTH, PAPER_WIDTH]
    assert {colour for _, colour in on_paper} == {rgb(SCHEMES["light"].text)}
    assert printed.startswith(b"%PDF-")
    becomes_true(page, f"JSON.stringify(({state})()) === {json.dumps(json.dumps(before, separators=(',', ':')))}")


def test_several_runs_share_one_page_and_text_of_others_never_acts(reader: Reader, both: Path) -> None:
    page = reader.open(both)

    assert page.locator("article").count() == 2
    assert page.locator(".plot svg.main-svg >> nth=0").is_visible()
    assert page.locator(".plot").count() == 3
    assert page.get_by_text(HOSTILE).count() == 2
    assert page.locator("img").count() == 0


def test_the_raw_data_is_saved_as_json_and_a_script_in_the_page_could_not_reach_the_network(
    browser: Browser, tmp_path: Path
) -> None:
    context = browser.new_context()  # not offline: only the page's own policy stands in the way
    page = context.new_page()
    whole = short("overlap", charts=0)
    page.goto(written(tmp_path, whole).as_uri())

    with page.expect_download() as saved:
        page.get_by_role("link", name=f"pinscope-{whole.run.id}.json").click()
    path = tmp_path / "saved.json"
    saved.value.save_as(path)
    assert saved.value.suggested_filename == f"pinscope-{whole.run.id}.json"
    assert json.loads(path.read_text()) == json.loads(json.dumps(run_document(whole)))

    outcome = page.evaluate("fetch('http://127.0.0.1:9/').then(() => 'sent', error => error.message)")
    blocked = page.evaluate(
        """() => new Promise(resolve => {
          addEventListener("securitypolicyviolation", event => resolve(event.blockedURI));
          new Image().src = "http://127.0.0.1:9/pixel";
        })"""
    )

    context.close()
    assert outcome == "Failed to fetch"
    assert blocked == "http://127.0.0.1:9/pixel"
