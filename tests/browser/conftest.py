"""A really served dashboard, and a real Chromium that drives it and sees to it that nothing goes wrong unseen."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import psutil
import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, expect

from pinscope.probes.environment import capture_environment
from pinscope.records.run import Run
from pinscope.runner import jobs
from pinscope.runner.worker import VARIABLE as QUEUE
from pinscope.store.store import Store
from tests.conftest import Outliving
from tests.data.waiting import free_port, until

ROOT = Path(__file__).parents[2]
PATIENCE = 30_000
"""Milliseconds until something that should show is missed: two busy cores draw slowly."""
OWN_ADDRESSES = ("http://127.0.0.1:", "ws://127.0.0.1:", "data:", "blob:", "about:")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test in this folder drives a browser."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.browser)


@dataclass
class Watched:
    """What a browser context complained of, and where it went.

    Attributes:
        complaints: console errors and warnings, and errors of scripts.
        strangers: requests to anything but this machine.
    """

    complaints: list[str] = field(default_factory=list)
    strangers: list[str] = field(default_factory=list)

    def watch(self, context: BrowserContext) -> None:
        """Listen to every page of the context."""
        context.on("console", self._on_console)
        context.on("weberror", lambda error: self.complaints.append(str(error.error)))
        context.on("request", self._on_request)

    def forget(self) -> None:
        """Begin anew, for another test."""
        self.complaints.clear()
        self.strangers.clear()

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")

    def _on_request(self, request: Request) -> None:
        if not request.url.startswith(OWN_ADDRESSES):
            self.strangers.append(request.url)


@dataclass
class Served:
    """A dashboard that runs.

    Attributes:
        process: the server.
        url: its address, without a slash at the end.
        store: the store that it uses.
    """

    process: subprocess.Popen[bytes]
    url: str
    store: Store


Serve = Callable[[], Served]
Begin = Callable[[], Run]


def start_dashboard(database: str) -> Served:
    """A dashboard as `pinscope dashboard` starts it, on that database; it can be asked."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "pinscope", "dashboard"],
        cwd=ROOT,
        env={**os.environ, "PINSCOPE_PORT": str(port), "PINSCOPE_DATABASE": database},
        stdout=subprocess.DEVNULL,
    )
    served = Served(process, f"http://127.0.0.1:{port}", Store(database))
    until(lambda: process.poll() is not None or healthy(served.url))
    return served


def stop_dashboard(served: Served) -> None:
    """End it, and let go of its store."""
    served.process.terminate()
    served.process.wait(timeout=20)
    served.store.close()


@pytest.fixture
def serve(one_dashboard: Served) -> Iterator[Serve]:
    """Starts dashboards beside the one of all, on its database, for tests that kill them."""
    servers: list[Served] = []

    def serve() -> Served:
        servers.append(start_dashboard(one_dashboard.store.url))
        return servers[-1]

    yield serve
    for served in servers:
        stop_dashboard(served)


@pytest.fixture(scope="session")
def one_dashboard(outliving: Outliving) -> Iterator[Served]:
    """The dashboard of all tests: to start one, and to draw its first page, takes longer than most tests."""
    served = start_dashboard(os.environ["PINSCOPE_DATABASE"])
    outliving.processes.add(served.process.pid)
    yield served
    stop_dashboard(served)


@pytest.fixture(scope="session")
def queue() -> str:
    """Where the runs of that dashboard queue."""
    return os.environ[QUEUE]


@pytest.fixture
def dashboard(one_dashboard: Served, queue: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """The dashboard, with an empty store; what a test started there has ended with the test."""
    monkeypatch.setenv(QUEUE, queue)
    yield one_dashboard
    until(lambda: working_children(one_dashboard.process.pid) == [], seconds=10)
    for run in one_dashboard.store.runs(recordings=False):
        one_dashboard.store.delete(run.id)


@pytest.fixture(scope="session")
def tab(chromium: Browser) -> Iterator[tuple[Page, Watched]]:
    """One tab for all tests: in a new one Chromium compiles Streamlit again, two seconds of a core."""
    context = chromium.new_context(accept_downloads=True)
    context.set_default_timeout(PATIENCE)
    watched = Watched()
    watched.watch(context)
    yield context.new_page(), watched
    context.close()


@pytest.fixture
def new_page(tab: tuple[Page, Watched], serve: Serve, dashboard: Served) -> Iterator[Callable[..., Page]]:
    """Makes the tab as wide, and as light or dark, as a test wants it; at the end nothing may have been complained of.

    A test finds nothing stored in it, and leaves it at a page that asks for nothing.
    """
    del serve  # pages close before the servers do
    expect.set_options(timeout=PATIENCE)
    page, watched = tab
    watched.forget()

    def new_page(width: int = 1400, scheme: Literal["light", "dark"] = "light") -> Page:
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # what moves is drawn again and again
        return page

    yield new_page
    for other in page.context.pages:
        if other != page:
            other.close()
    page.goto(f"{dashboard.url}/_stcore/health")  # of the same site, so the tab keeps its process
    page.evaluate("() => { localStorage.clear(); sessionStorage.clear(); }")
    page.context.clear_cookies()
    assert watched.complaints == []
    assert watched.strangers == []


@pytest.fixture
def page(new_page: Callable[..., Page]) -> Page:
    """One page on a wide screen."""
    return new_page()


@pytest.fixture
def begin(dashboard: Served) -> Iterator[Begin]:
    """Starts a long run on the host model, without the form; it has begun to measure."""
    started: list[jobs.Job] = []

    def begin() -> Run:
        overrides = {"sizes": "64KiB,1MiB", "precision": 1e-6, "repeats": 10_000, "time_limit": 20}
        request = jobs.Request("bandwidth", "host", quick=True, overrides=overrides)
        started.append(jobs.start(dashboard.store, jobs.prepare(request, capture_environment())))
        run_id = started[-1].run_id
        until(lambda: dashboard.store.run(run_id).observations > 0)
        run: Run = dashboard.store.run(run_id)
        return run

    yield begin
    for job in started:
        job.child.terminate()
        job.child.wait(timeout=20)


def working_children(pid: int) -> list[int]:
    """Processes below this one, without those that have ended and wait to be noticed."""
    found = []
    for child in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if child.status() != psutil.STATUS_ZOMBIE:
                found.append(child.pid)
    return found


def healthy(url: str) -> bool:
    """Whether the server answers."""
    try:
        with urllib.request.urlopen(f"{url}/_stcore/health", timeout=2) as answer:  # noqa: S310 - http only
            return bool(answer.status == 200)
    except OSError:
        return False


def settle(page: Page) -> None:
    """Wait until the page's script has run and everything is drawn."""
    page.locator('[data-testid="stAppViewContainer"] [data-testid="stHeading"]').first.wait_for()  # comes first
    page.locator('[data-testid="stApp"][data-test-script-state="notRunning"]').wait_for()
