"""The dashboard against foreign pages."""

from __future__ import annotations

import itertools
import json
import os
import random
import socket
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from pinscope.dashboard import middleware
from tests.conftest import Outliving
from tests.data.network_witness import Witness, compile_witness
from tests.faults.campaign import Campaign, whole_only
from tests.faults.child import TREE

FORWARDED, PROXY = "http://localhost:9000", "https://gpu.example.org"
HEALTH_SECONDS = 10.0
"""Within which the server answers whatever others do; on a busy machine."""


PATIENCE = 20.0
"""Seconds until a server that does not answer has failed."""
Header = tuple[str, str]


def request(method: str, path: str, headers: Iterable[Header]) -> bytes:
    """A request as it goes over the line; headers in the order given, as often as given."""
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers), "", ""]
    return "\r\n".join(lines).encode("latin-1")


def upgrade(headers: Iterable[Header]) -> bytes:
    """A request for Streamlit's WebSocket."""
    asking = (
        ("Connection", "Upgrade"), ("Upgrade", "websocket"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="), ("Sec-WebSocket-Version", "13"),
    )  # fmt: skip
    return request("GET", "/_stcore/stream", (*headers, *asking))


def answer(port: int, sent: bytes) -> tuple[int, bytes]:
    """Status of the server's answer, and what it says; 0 if it hangs up without a word."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as client, client.makefile("rb") as received:
        client.sendall(sent)
        status = received.readline()
        size = 0 if status[9:10] in (b"1", b"2", b"3") else -1
        while line := received.readline().strip().lower():
            name, _, value = line.partition(b":")
            size = int(value) if name == b"content-length" else size
        return (int(status.split(b" ", 2)[1]) if status else 0), received.read(size)


@dataclass(frozen=True)
class Served:
    """A dashboard that its owner reaches through a forwarded port and a proxy, too."""

    port: int
    log: Path
    witness: Witness

    def health(self) -> float:
        """Seconds until it says that it is well."""
        begun = time.monotonic()
        status, _ = answer(self.port, request("GET", "/_stcore/health", [("Host", f"127.0.0.1:{self.port}")]))
        assert status == 200
        return time.monotonic() - begun

    def tracebacks(self) -> int:
        """How many its log has."""
        return self.log.read_text(errors="replace").count("Traceback (most recent call last)")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, outliving: Outliving) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    witness = Witness(compile_witness(folder), folder / "witnessed")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    variables = {**os.environ, **witness.variables, "PINSCOPE_ORIGINS": f"{FORWARDED},{PROXY}"}
    with (folder / "log").open("wb") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "pinscope", "dashboard", "--port", str(port)],
            cwd=TREE, env=variables, stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
    outliving.processes.add(child.pid)
    server = Served(port, folder / "log", witness)
    deadline = time.monotonic() + 60
    while True:
        with suppress(OSError):
            server.health()
            break
        assert child.poll() is None, server.log.read_text()
        assert time.monotonic() < deadline, "the server did not answer in time"
        time.sleep(0.1)
    yield server
    child.terminate()
    child.wait(timeout=30)


def own_hosts(port: int) -> list[str]:
    return [f"127.0.0.1:{port}", f"localhost:{port}", f"LocalHost:{port}", "localhost:9000", "gpu.example.org"]


def foreign_hosts(port: int) -> list[str]:
    return [
        "", "localhost", "127.0.0.1", f"localhost:{port + 1}", f"localhost.:{port}", f"evil.example:{port}",
        f"localhost.evil.example:{port}", f"user@localhost:{port}", f"[::1]:{port}", f"0.0.0.0:{port}",
        f"127.0.0.2:{port}", f"2130706433:{port}", f"localhost:{port}/", f"localhost:0{port}", f"localhost:{port}:80",
        f"localhost:{port}, evil.example", "gpu.example.org:80", "gpu.example.org.", f"gpu.example.org:{port}",
        "sub.gpu.example.org", "null", f"löcalhost:{port}", "localhost:99999", "localhost:-1", f"localhost:{port}\\@x",
    ]  # fmt: skip


def own_origins(port: int) -> list[str]:
    return [f"http://127.0.0.1:{port}", f"http://localhost:{port}", f"HTTP://LOCALHOST:{port}", FORWARDED, PROXY]


def foreign_origins(port: int) -> list[str]:
    return [
        "", "null", "http://evil.example", f"http://evil.example:{port}", "http://localhost:3000", "http://localhost",
        "http://127.0.0.1", "http://127.0.0.1:1", "http://0.0.0.0", f"http://0.0.0.0:{port}", f"http://[::1]:{port}",
        f"https://localhost:{port}", f"ws://localhost:{port}", f"ftp://localhost:{port}", f"//localhost:{port}",
        f"localhost:{port}", f"http://localhost.:{port}", f"http://localhost:{port}.", f"http://localhost:{port}/",
        f"http://localhost:{port}/path", f"http://localhost:{port}?", f"http://localhost:{port}#", "file://",
        f"http://evil@localhost:{port}", f"http://localhost:{port}@evil.example", f"http://localhost:0{port}",
        f"http://localhost.evil.example:{port}", f"http://evil-localhost:{port}", f"http://127.1:{port}",
        f"http://2130706433:{port}", f"http://0x7f.1:{port}", f"http://127.0.0.2:{port}", f"http://löcalhost:{port}",
        f"http://xn--lcalhost-90a:{port}", f"http://localhost:{port} http://evil.example", "http://gpu.example.org",
        f"http://localhost:{port},http://evil.example", "https://gpu.example.org:8443", "https://evil.gpu.example.org",
        "https://gpu.example.org.evil.example", "https://localhost:9000", "http://localhost:90000", "http://localhost:-1",
        "chrome-extension://abcdefghijklmnop", "http://8.8.8.8", f"http://{socket.gethostname()}:{port}", "http://",
    ]  # fmt: skip


TARGETS: dict[str, Callable[[list[Header]], bytes]] = {
    "websocket": upgrade,
    "upload": lambda headers: request("PUT", "/_stcore/upload_file/one/two", [*headers, ("Content-Length", "0")]),
    "media": lambda headers: request("GET", "/media/nothing.png", headers),
    "health": lambda headers: request("GET", "/_stcore/health", headers),
    "page": lambda headers: request("GET", "/runs", headers),
}
REFUSED = (400, 403)
GATE = (
    middleware.WRONG_ADDRESS.encode(),
    middleware.FOREIGN_PAGE.encode(),
    b"This address is not known",
    b"Invalid HTTP request",
)


def check(campaign: Campaign, served: Served, target: str, hosts: list[str], origins: list[str], *, own: bool) -> None:
    """One request: it must be let in if it is the dashboard's own, and refused if not, at once."""
    headers = [*(("Host", host) for host in hosts), *(("Origin", origin) for origin in origins)]
    begun = time.monotonic()
    status, said = answer(served.port, TARGETS[target](headers))
    seconds = time.monotonic() - begun
    campaign.count("requests")
    # Streamlit has a refusal of its own for an upload without its token; the gate's one names the dashboard's pages.
    let_in = status not in REFUSED or (target == "upload" and not said.startswith(GATE))
    what = f"{target} of host {hosts} from {origins}: {status}"
    if let_in != own:
        kept = json.dumps([target, hosts, origins, own]).replace(str(served.port), "PORT").encode()
        campaign.fail(what, kept, f"{target}-{zlib.crc32(kept):08x}.json")
    if target == "websocket" and own and status != 101:
        campaign.fail(f"{what}, not 101")
    if seconds > HEALTH_SECONDS:
        campaign.fail(f"{what}, after {seconds:.1f} s")


@whole_only
def test_foreign_origins(campaign: Campaign, served: Served) -> None:
    """Hosts × origins × what is asked for; then origins that differ from the own one in one place."""
    port = served.port
    mine, other = own_origins(port), foreign_origins(port)
    own, foreign = own_hosts(port), foreign_hosts(port)
    for _, kept in campaign.corpus():
        target, hosts, origins, expected = json.loads(kept.decode().replace("PORT", str(port)))
        check(campaign, served, target, hosts, origins, own=expected)
    for origin in (*mine, *other):  # Streamlit's own check lets several of these in: every one of them, always
        check(campaign, served, "websocket", [own[0]], [origin], own=origin in mine)
    check(campaign, served, "websocket", [own[0]], [], own=False)
    for target in TARGETS:
        check(campaign, served, target, [own[0]], [mine[0], mine[0]], own=False)
        check(campaign, served, target, [own[0]], [mine[0], "http://evil.example"], own=False)
        check(campaign, served, target, [own[0], "evil.example"], [mine[0]], own=False)
        check(campaign, served, target, [own[0], own[0]], [mine[0]], own=False)
        check(campaign, served, target, [], [mine[0]], own=False)
        check(campaign, served, target, [own[0]], [] if target != "websocket" else [mine[0]], own=True)
    for target, host, origin in itertools.product(TARGETS, (*own, *foreign), (*mine, *other)):
        check(campaign, served, target, [host], [origin], own=host in own and origin in mine)
    for attempt in range(5000):
        origin = changed(campaign.random(attempt), mine[attempt % 2])
        check(campaign, served, "websocket", [own[0]], [origin], own=origin.strip().lower() in mine)
    assert served.witness.seen() == []
    assert served.tracebacks() == 0


def changed(chance: random.Random, text: str) -> str:
    """``text`` with one character put in, taken out or replaced; printable Latin-1, as a header may hold."""
    place = chance.randrange(len(text) + 1)
    fresh = chr(chance.choice([*range(0x20, 0x7F), *range(0xA0, 0x100)]))
    return text[:place] + chance.choice(["", fresh]) + text[place + chance.choice([0, 1]) :]
