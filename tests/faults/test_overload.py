"""More clients than there is time for: everything gets slower, and nothing stops."""

from __future__ import annotations

import http.client
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Error, Page

from pinscope.live.sampler import History
from pinscope.monitoring import server as metrics_server
from pinscope.monitoring.metrics import SnapshotCollector
from pinscope.monitoring.server import MOST_CONNECTIONS, MetricsServer
from tests.browser.conftest import settle
from tests.data.synthetic_snapshot import snapshot
from tests.faults import web_client
from tests.faults.campaign import WHOLE, Campaign
from tests.faults.child import TREE
from tests.faults.tabs import Dashboard, dashboard, load

pytestmark = pytest.mark.alone

MIB = 2**20
LONGEST_GAP_SECONDS = 10.0
WORST_HEALTH_SECONDS = 1.0 if WHOLE else 3.0
"""The sample runs beside all other tests."""
SLOWEST_SCRAPE_SECONDS = 10.0
"""Prometheus' own limit."""
GIVEN_BACK_SECONDS = 110.0
"""By then the sessions are closed, and the sampler rests, which keeps a file of each process open."""

SLOW_CLIENTS, DESCRIPTORS = 1100, 1024
AGAIN_SECONDS = 1.0
"""Until one that was dropped connects again."""
SLOWEST_ANSWER_SECONDS = 2.0
LATEST_PAGE_SECONDS = 2.0
MOST_LINES = 10


def test_tabs(campaign: Campaign) -> None:
    """Each tab of the page Now is redrawn, none is dropped, the server answers, and what they held comes back."""
    sizes = [(1, 20), (5, 30), (10, 30), (20, 60), (50, 300)] if WHOLE else [(3, 2.0)]
    with dashboard() as served:
        if WHOLE:
            load(served, 1, 10)  # loads modules
        memory, descriptors = served.memory_bytes, served.descriptors
        for tabs, seconds in sizes:
            campaign.count("requests", tabs)
            seen = load(served, tabs, seconds)
            campaign.measured.append(f"{seen}; {served.memory_bytes / MIB:.0f} MiB, {served.descriptors} descriptors")
            if seen.dropped:
                campaign.fail(f"{tabs} tabs: {len(seen.dropped)} dropped: {seen.dropped[0]}")
            if seen.longest_gap_seconds > LONGEST_GAP_SECONDS:
                campaign.fail(f"{tabs} tabs: one was not redrawn for {seen.longest_gap_seconds:.1f} s")
            if seen.worst_health_seconds > WORST_HEALTH_SECONDS:
                campaign.fail(f"{tabs} tabs: the server did not answer for {seen.worst_health_seconds:.1f} s")
        if WHOLE:
            time.sleep(GIVEN_BACK_SECONDS)
            kept, left_open = served.memory_bytes - memory, served.descriptors - descriptors
            campaign.measured.append(f"after they closed: {kept / MIB:+.0f} MiB, {left_open:+} descriptors")
            if kept > 50 * MIB or left_open > 5:
                campaign.fail(f"after all tabs closed {kept / MIB:.0f} MiB and {left_open} descriptors stay")


@pytest.fixture
def slow_tab(chromium: Browser, tmp_path: Path) -> Iterator[tuple[Dashboard, Page, Path]]:
    """A dashboard with few descriptors, a tab that has been there, and what the dashboard says."""
    log = tmp_path / "log"
    with log.open("wb") as file, dashboard(file, DESCRIPTORS) as served, closing(chromium.new_context()) as context:
        page = context.new_page()
        draw(served, page)
        yield served, page, log


def draw(served: Dashboard, page: Page) -> float:
    """Seconds until the page Experiments, which waits for no measurement, was drawn or given up."""
    begun = time.monotonic()
    with suppress(Error):
        page.goto(f"http://127.0.0.1:{served.port}/experiments")
        settle(page)
    return time.monotonic() - begun


def test_slow_clients_of_the_dashboard(campaign: Campaign, slow_tab: tuple[Dashboard, Page, Path]) -> None:
    """They are more than there are descriptors, and connect again when dropped; nobody else is kept away."""
    served, page, log = slow_tab
    usual = [draw(served, page) for _ in range(campaign.size(sample=5, whole=20))]
    said = log.read_bytes().count(b"\n")
    slow = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.slow_clients", *map(str, (served.port, SLOW_CLIENTS, AGAIN_SECONDS))],
        cwd=TREE, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    asked: dict[str, list[float]] = {"/": [], "/_stcore/health": []}
    stop = threading.Event()
    asking = [threading.Thread(target=_ask, args=(served.port, path, asked[path], stop)) for path in asked]
    drawn, most_open, begun = [], 0, time.monotonic()
    try:
        for thread in asking:
            thread.start()
        while time.monotonic() - begun < campaign.size(sample=10, whole=120):
            drawn.append(draw(served, page))
            most_open = max(most_open, served.descriptors)
            time.sleep(1)
    finally:
        stop.set()
        for thread in asking:
            thread.join()
        connections = int(slow.communicate()[0])
    campaign.count("requests", connections)
    later, lines = max(drawn) - max(usual), log.read_bytes().count(b"\n") - said
    campaign.measured.append(
        f"{SLOW_CLIENTS} slow clients, {connections} connections in {time.monotonic() - begun:.0f} s: GET / within "
        f"{max(asked['/']):.2f} s, health within {max(asked['/_stcore/health']):.2f} s; a page drawn in "
        f"{median(drawn):.2f} s, at most {max(drawn):.2f} s, without them in {median(usual):.2f} s, at most "
        f"{max(usual):.2f} s; {lines} lines in the log; {most_open} descriptors"
    )
    for path, seconds in asked.items():
        if max(seconds) > SLOWEST_ANSWER_SECONDS:
            campaign.fail(f"beside {SLOW_CLIENTS} slow clients {path} was answered after {max(seconds):.1f} s")
    if later > LATEST_PAGE_SECONDS:
        campaign.fail(f"beside {SLOW_CLIENTS} slow clients a page was drawn {later:.1f} s later")
    if lines > MOST_LINES:
        campaign.fail(f"{SLOW_CLIENTS} slow clients left {lines} lines in the log")


def _ask(port: int, path: str, seconds: list[float], stop: threading.Event) -> None:
    """Again and again, each time with a connection of its own; an answer that does not come takes a minute."""
    own = web_client.request("GET", path, [("Host", f"127.0.0.1:{port}"), ("Connection", "close")])
    while not stop.wait(0.3):
        begun = time.monotonic()
        try:
            status, _ = web_client.answer(port, own)
        except OSError:
            status = 0
        seconds.append(time.monotonic() - begun if status == 200 else 60.0)


@pytest.fixture
def metrics() -> Iterator[tuple[str, int]]:
    """Where the metrics are served."""
    history = History(latest=snapshot())
    with MetricsServer(SnapshotCollector(lambda: history, lambda: snapshot().taken_at), port=0) as running:
        where = urlsplit(running.url)
        assert where.hostname is not None
        assert where.port is not None
        yield where.hostname, where.port


def scrape(where: tuple[str, int]) -> float:
    """Seconds until the metrics were there."""
    begun = time.monotonic()
    connection = http.client.HTTPConnection(*where, timeout=60)
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        assert b"\npinscope_host_pinned_bytes " in answer.read()
    finally:
        connection.close()
    return time.monotonic() - begun


def test_scrapers(campaign: Campaign, metrics: tuple[str, int]) -> None:
    """A hundred at the same moment are all served before Prometheus gives up."""
    at_once = 100
    with ThreadPoolExecutor(at_once) as pool:
        for _ in range(campaign.size(sample=1, whole=20)):
            campaign.count("requests", at_once)
            together = threading.Barrier(at_once)
            answers = list(pool.map(lambda _, together=together: (together.wait(), scrape(metrics))[1], range(at_once)))
            if max(answers) > SLOWEST_SCRAPE_SECONDS:
                campaign.fail(f"one of {at_once} scrapers waited for {max(answers):.1f} s")


def test_slow_clients(
    campaign: Campaign, metrics: tuple[str, int], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Clients that ask byte by byte, say nothing or read nothing keep nobody away, and are ended in time."""
    limit = campaign.size(sample=1, whole=10)
    monkeypatch.setattr(metrics_server, "REQUEST_SECONDS", float(limit))
    stop = threading.Event()
    slow = [socket.create_connection(metrics) for _ in range(MOST_CONNECTIONS + 20)]
    campaign.count("requests", len(slow))
    opened = time.monotonic()
    dripping = threading.Thread(target=_drip, args=(slow, stop))
    dripping.start()
    try:
        campaign.count("requests")
        if (waited := scrape(metrics)) > SLOWEST_SCRAPE_SECONDS:
            campaign.fail(f"beside {len(slow)} slow clients a scraper waited for {waited:.1f} s")
        for number, one in enumerate(slow):
            one.settimeout(3 * limit + 10)
            with suppress(ConnectionError):
                while one.recv(4096):
                    pass
            lasted = time.monotonic() - opened
            if lasted > 3 * limit + 5:  # some waited for their turn
                campaign.fail(f"slow client {number} was served for {lasted:.1f} s")
                break
    finally:
        stop.set()
        dripping.join()
        for one in slow:
            one.close()
    if "Traceback" in capfd.readouterr().err:
        campaign.fail("a slow client left a traceback")


def _drip(clients: list[socket.socket], stop: threading.Event) -> None:
    """A third sends a header byte by byte, a third nothing, a third asks and does not read."""
    for one in clients[::3]:
        with suppress(OSError):
            one.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
    request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX-Slow: " + b"x" * 1000
    for byte in request:
        for one in clients[1::3]:
            with suppress(OSError):
                one.sendall(bytes([byte]))
        if stop.wait(0.2):
            return


def test_hostile_requests(campaign: Campaign, metrics: tuple[str, int], capfd: pytest.CaptureFixture[str]) -> None:
    """Whatever a request says, the answer is one of HTTP's and no error of the server's, and leaves no traceback."""
    for name, request in campaign.corpus():
        _ask_hostile(campaign, metrics, request, name)
    for attempt in range(campaign.size(sample=150, whole=5000)):
        _ask_hostile(campaign, metrics, _hostile(campaign.random(attempt)), f"{attempt}.http")
    scrape(metrics)
    if "Traceback" in (said := capfd.readouterr().err):
        campaign.fail(f"a request left a traceback: {said[-300:]}")


def _ask_hostile(campaign: Campaign, where: tuple[str, int], request: bytes, name: str) -> None:
    campaign.count("requests")
    begun = time.monotonic()
    with socket.create_connection(where, timeout=30) as client:
        answer = b""
        with suppress(OSError):  # it hung up before the end of the request
            client.sendall(request)
            client.shutdown(socket.SHUT_WR)
            while part := client.recv(65536):
                answer += part
    status = answer.split(b"\r\n", 1)[0]
    if status.startswith(b"HTTP/") and b" 5" in status and b" 505 " not in status and b" 501 " not in status:
        campaign.fail(f"{name}: answered with {status.decode(errors='replace')}", request, name)
    if (lasted := time.monotonic() - begun) > SLOWEST_SCRAPE_SECONDS:
        campaign.fail(f"{name}: took {lasted:.1f} s", request, name)


def _hostile(chance: random.Random) -> bytes:
    """A request with something wrong in one or more of its parts."""

    def junk(most: int = 40) -> bytes:
        return bytes(chance.choice(b"\x00\x7f\xff\"';,=%:/\\ \tA9.-[]{}<>") for _ in range(chance.randrange(most)))

    digits = b"9" * chance.choice([1, 20, 400, 4301, 30000])
    version = chance.choice([digits, b"-1", b"", b"1..0", b"1.0.0", b"0.0.4", b"nan", b"1e9", junk(), b"\xb2.0.0"])
    media = chance.choice([b"application/openmetrics-text", b"text/plain", b"*/*", junk()])
    escaping = chance.choice([b"", b";escaping=values", b";escaping=" + junk()])
    accept = media + b";version=" + version + escaping + chance.choice([b"", b";q=" + junk(), b"," + junk(200)])
    path = chance.choice([b"/metrics", b"/metrics?name[]=" + junk(), b"/metrics?" + b"a=1&" * 5000, b"/" + junk()])
    lines = [
        chance.choice([b"GET", b"GET", b"GET", b"HEAD", b"POST", b"OPTIONS", junk()]) + b" " + path + b" HTTP/1."
        + chance.choice([b"1", b"0", b"9" * 5000, junk()]),
        b"Host: " + chance.choice([b"localhost", b"127.0.0.1:1", b"[::1]", junk(), b"x" * 70000]),
        b"Accept: " + accept,
        b"Accept-Encoding: " + chance.choice([b"gzip", b"identity", b"gzip;q=" + junk(), junk(500)]),
        b"Content-Length: " + chance.choice([b"0", b"-5", digits, junk()]),
    ]  # fmt: skip
    lines += [b"X-%d: " % number + junk() for number in range(chance.choice([0, 0, 3, 150]))]
    return b"\r\n".join(lines) + chance.choice([b"\r\n\r\n", b"\r\n\r\n", b"\r\n", b""])
