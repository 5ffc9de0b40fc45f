"""PinScope sends nothing anywhere: used whole where there is no network, it does not even try."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from pinscope.dashboard.pages import EXPERIMENTS, HOME, PAGES
from pinscope.store.store import Store
from tests.browser.conftest import PATIENCE, ROOT, Served, Watched, free_port, settle, until
from tests.browser.test_journey import download, open_downloads, start
from tests.conftest import ARGUMENTS
from tests.data.network_witness import Namespace, Witness, compile_witness, empty_namespace

NO_LOOK_UPS = ("--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1", "--no-proxy-server")
"""Chromium looks names up for services of its own; what a page asks for is listened to apart."""
FOREIGN_SETTINGS = """
[browser]
gatherUsageStats = true
[theme]
font = "Elsewhere:http://192.0.2.1/font.css"
"""
"""In a user's home, for other apps of Streamlit. 192.0.2.1 is nobody's (RFC 5737)."""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_witness(tmp_path_factory.mktemp("witness"))


@pytest.fixture
def witness(compiled: Path, tmp_path: Path) -> Witness:
    return Witness(compiled, tmp_path / "witnessed")


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    with empty_namespace() as made:
        yield made


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The home of a user with settings for other apps."""
    folder = tmp_path / "home"
    (folder / ".streamlit").mkdir(parents=True)
    (folder / ".streamlit" / "config.toml").write_text(FOREIGN_SETTINGS)
    return folder


@pytest.fixture
def start_inside(namespace: Namespace, witness: Witness, home: Path) -> Iterator[Callable[..., int]]:
    """Starts a command that serves, in the namespace; its port, once it listens."""
    started = []

    def start_inside(arguments: Callable[[int], list[str]], **variables: str) -> int:
        port = free_port()
        command = [*namespace.prefix, sys.executable, "-m", *arguments(port)]
        environment = {**os.environ, **witness.variables, "HOME": str(home), **variables}
        started.append(subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL))
        until(lambda: started[-1].poll() is not None or namespace.listens(port))
        assert started[-1].poll() is None
        return port

    yield start_inside
    for process in started:
        process.terminate()
        process.wait(timeout=20)


@pytest.fixture
def inner_page(chromium: Browser, namespace: Namespace, tmp_path: Path) -> Iterator[tuple[Page, Watched]]:
    """A page on a phone's screen, of a browser that runs in the namespace, with services of its own switched off."""
    script = tmp_path / "chromium"
    binary = os.environ.get("CHROMIUM") or shutil.which("chromium")
    script.write_text(f'#!/bin/sh\nexec {" ".join(namespace.prefix)} {binary} "$@"\n')
    script.chmod(0o755)
    watched = Watched()
    browser = chromium.browser_type.launch(executable_path=script, args=[*ARGUMENTS, *NO_LOOK_UPS])
    context = browser.new_context(viewport={"width": 390, "height": 900}, accept_downloads=True)
    context.set_default_timeout(4 * PATIENCE)
    expect.set_options(timeout=PATIENCE)
    watched.watch(context)
    yield context.new_page(), watched
    context.close()
    browser.close()


def test_the_witnesses_see_what_they_are_there_for(namespace: Namespace, witness: Witness) -> None:
    program = (
        "import socket\n"
        "for port, name in ((9, '192.0.2.1'), (9, 'name.example'), (9, '127.0.0.1')):\n"
        "    try: socket.create_connection((name, port), timeout=5)\n"
        "    except OSError: pass\n"
    )
    subprocess.run(
        [*namespace.prefix, sys.executable, "-c", program], env={**os.environ, **witness.variables}, check=True
    )
    seen = [line.split(": ")[1] for line in witness.seen()]
    assert seen[:2] == ["connect(192.0.2.1)", "getaddrinfo(name.example)"]
    assert not any("127.0.0.1" in line for line in seen)
    assert namespace.unroutable() > 0


def fits(page: Page) -> None:
    """Nothing of a page is wider than the screen, and nothing of it went wrong."""
    too_wide = page.evaluate("document.scrollingElement.scrollWidth - window.innerWidth")
    assert too_wide <= 0, f"{page.url} is {too_wide} pixels wider than the screen"
    assert page.get_by_test_id("stException").count() == 0


@pytest.mark.release
def test_a_tour_of_the_dashboard_on_a_phone_asks_for_nothing_outside(
    start_inside: Callable[..., int],
    namespace: Namespace,
    witness: Witness,
    inner_page: tuple[Page, Watched],
    tmp_path: Path,
) -> None:
    page, watched = inner_page
    port = start_inside(lambda port: ["pinscope", "dashboard", "--port", str(port)])
    with Store() as store:
        dashboard = Served(None, f"http://127.0.0.1:{port}", store)  # type: ignore[arg-type]
        recording = next(run.id for run in store.runs() if run.recording)
        pages = ["" if entry is HOME else entry.path.stem for entry in PAGES if entry is not EXPERIMENTS]
        for path in (*pages, f"runs?run={recording}", EXPERIMENTS.path.stem):
            page.goto(f"{dashboard.url}/{path}")
            settle(page)
            fits(page)
        for label, text in (("Copy sizes", "64 KiB"), ("Time limit (s)", "0.1")):
            page.get_by_label(label, exact=True).fill(text)
            page.get_by_label(label, exact=True).press("Enter")
            settle(page)
        run = start(page, dashboard)
        until(lambda: store.run(run.id).status == "done")
        open_downloads(page, dashboard, run)
        fits(page)
        report = download(page, "HTML report", tmp_path)
        page.goto(report.as_uri())
        page.wait_for_selector("html[data-drawn]", state="attached")
    assert watched.complaints == []
    assert [url for url in watched.strangers if not url.startswith("file:")] == []
    assert witness.seen() == []
    assert namespace.unroutable() == 0


COMMANDS = (
    ("doctor",),
    ("run", "bandwidth", "--lab", "host", "--quick", "--set", "sizes=64KiB", "--set", "time_limit=0.1"),
    ("live", "--once"),
    ("record", "--for", "1s"),
    ("report", "RECORDING", "-o", "report.html"),
    ("runs", "list"),
    ("plan", "--pinned", "1TiB"),
)
ONE_AFTER_THE_OTHER = """
import json, sys
from pinscope.cli.main import main
for command in json.loads(sys.argv[1]):
    if main(command):
        sys.exit(f"{command} went wrong")
"""


def test_the_commands_ask_for_nothing_outside(namespace: Namespace, witness: Witness, tmp_path: Path) -> None:
    with Store() as store:
        recording = next(run.id for run in store.runs() if run.recording)
    commands = [[recording if word == "RECORDING" else word for word in command] for command in COMMANDS]
    done = subprocess.run(
        [*namespace.prefix, sys.executable, "-P", "-c", ONE_AFTER_THE_OTHER, json.dumps(commands)],
        env={**os.environ, **witness.variables, "PYTHONPATH": str(ROOT)}, cwd=tmp_path, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "report.html").exists()
    assert witness.seen() == []
    assert namespace.unroutable() == 0


def test_the_exporter_asks_for_nothing_outside(
    start_inside: Callable[..., int], namespace: Namespace, witness: Witness
) -> None:
    port = start_inside(lambda port: ["pinscope", "exporter", "--port", str(port)])
    scrape = f"import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:{port}/metrics').read().decode())"
    scraped = subprocess.run(
        [*namespace.prefix, sys.executable, "-c", scrape], capture_output=True, text=True, check=True
    )
    assert "pinscope_up" in scraped.stdout
    assert witness.seen() == []
    assert namespace.unroutable() == 0
