"""The server as it really runs: reachable here only, under its own name only, and gone when it is told to."""

from __future__ import annotations

import gzip
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import psutil
import pytest

from pinscope.dashboard.routes import serve
from pinscope.errors import NotPossible
from pinscope.manual.site import Site
from tests.conftest import Outliving
from tests.data.waiting import free_port, until

ROOT = Path(__file__).parents[3]
FORWARDED = "http://localhost:9000"
FOREIGN = (
    "http://localhost:3000", "http://localhost", "http://127.0.0.1:1", "http://0.0.0.0:PORT", "https://localhost:PORT",
    "http://[::1]:PORT", "http://localhost.:PORT", "http://evil.example", "http://localhost.evil.example:PORT",
    "http://evil@localhost:PORT", "null", "file://", "https://localhost:9000",
)  # fmt: skip
"""Pages that are not the dashboard's; some of them Streamlit takes for its own."""
STARTS = {
    "pinscope dashboard": lambda port: [sys.executable, "-m", "pinscope", "dashboard", "--port", str(port)],
    "streamlit run app.py": lambda port: [
        sys.executable, "-m", "streamlit", "run", "app.py", "--server.port", str(port),
    ],
}  # fmt: skip


@contextmanager
def served(command: list[str], port: int, variables: Mapping[str, str] = os.environ) -> Iterator[subprocess.Popen[str]]:
    """The server, once it answers."""
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    child = subprocess.Popen(command, cwd=ROOT, env=dict(variables), text=True, **output)
    try:
        until(lambda: answers(port), child)
        yield child
    finally:
        child.terminate()
        child.communicate(timeout=20)


def answers(port: int) -> bool:
    try:
        return get(port, "/_stcore/health").status == 200
    except OSError:
        return False


def get(port: int, path: str, **headers: str) -> HTTPResponse:
    with closing(HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        answer.body = answer.read()  # type: ignore[attr-defined]
        return answer


def upgrade(port: int, host: str, **origin: str) -> int:
    """The status of the answer to a request for Streamlit's WebSocket."""
    return get(
        port, "/_stcore/stream", Host=host, Connection="Upgrade", Upgrade="websocket",
        Sec_WebSocket_Key="dGhlIHNhbXBsZSBub25jZQ==", Sec_WebSocket_Version="13", **origin,
    ).status  # fmt: skip


@pytest.fixture(scope="module", params=STARTS, ids=lambda name: name.replace(" ", "-"))
def port(request: pytest.FixtureRequest, outliving: Outliving) -> Iterator[int]:
    """The port of a served dashboard, started in every way there is."""
    port = free_port()
    with served(STARTS[request.param](port), port, {**os.environ, "PINSCOPE_ORIGINS": FORWARDED}) as child:
        outliving.processes.add(child.pid)
        yield port


def test_only_this_machine_can_reach_it(port: int) -> None:
    listening = [c for c in psutil.net_connections("tcp") if c.status == "LISTEN" and c.laddr.port == port]
    assert [c.laddr.ip for c in listening] == ["127.0.0.1"]


def test_the_pages_are_imported_before_a_browser_asks_for_one(port: int) -> None:
    connections = psutil.net_connections("tcp")
    (pid,) = {c.pid for c in connections if c.status == "LISTEN" and c.laddr.port == port}
    until(lambda: any("/pandas/" in mapped.path for mapped in psutil.Process(pid).memory_maps()))


def test_a_rebound_host_is_refused_everything(port: int) -> None:
    for path in ["/", "/runs", "/_stcore/health", "/_stcore/host-config", "/static/x.js"]:
        assert get(port, path, Host=f"evil.example:{port}").status == 400


def test_its_own_page_gets_the_websocket_and_no_other_does(port: int) -> None:
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", FORWARDED.removeprefix("http://")):
        assert upgrade(port, host, Origin=f"http://{host}") == 101
    for origin in FOREIGN:
        assert upgrade(port, f"127.0.0.1:{port}", Origin=origin.replace("PORT", str(port))) == 403, origin
    assert upgrade(port, f"127.0.0.1:{port}") == 403
    assert upgrade(port, f"evil.example:{port}", Origin=f"http://evil.example:{port}") == 403  # a rebound host


def test_a_forwarded_port_that_was_not_named_says_what_to_do(port: int) -> None:
    answer = get(port, "/", Host="localhost:9001")
    assert answer.status == 400
    assert b"--origin http://localhost:9001" in answer.body  # type: ignore[attr-defined]


def test_another_page_is_refused_everything(port: int) -> None:
    for path in ["/", "/_stcore/health", "/static/x.js", "/media/x.png"]:
        assert get(port, path, Origin="http://localhost:3000").status == 403
        assert (
            get(port, path, Sec_Fetch_Site="same-site", Sec_Fetch_Mode="no-cors", Sec_Fetch_Dest="image").status == 403
        )


def test_a_link_on_another_page_opens_it(port: int) -> None:
    link = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate"}
    assert get(port, "/runs", **link, Sec_Fetch_Dest="document").status == 200
    assert get(port, "/runs", **link, Sec_Fetch_Dest="iframe").status == 403


def test_every_answer_keeps_the_browser_from_others(port: int) -> None:
    for path in ["/", "/runs", "/_stcore/health", "/favicon.png", "/media/nothing.png"]:
        answer = get(port, path)
        policy = dict(part.split(" ", 1) for part in (answer.getheader("content-security-policy") or "").split("; "))
        assert policy["default-src"] == policy["frame-ancestors"] == policy["form-action"] == "'none'"
        assert policy["connect-src"] == "'self'"
        assert not {"'unsafe-inline'", "'unsafe-eval'", "*"} & set(policy["script-src"].split())
        assert answer.getheader("referrer-policy") == "no-referrer"
        assert answer.getheader("x-content-type-options") == "nosniff"


@pytest.fixture
def foreign_settings(tmp_path: Path) -> Mapping[str, str]:
    """Variables of a user who has settings for other apps, which are not PinScope's."""
    (tmp_path / ".streamlit").mkdir()
    (tmp_path / ".streamlit" / "config.toml").write_text(
        '[server]\naddress = "0.0.0.0"\nsslCertFile = "/nowhere"\nbaseUrlPath = "x"\n[theme]\nbase = "nowhere.toml"\n'
    )
    return {**os.environ, "HOME": str(tmp_path), "STREAMLIT_SERVER_SSL_KEY_FILE": "/nowhere"}


def test_every_page_knows_where_its_server_is(port: int) -> None:
    for encoding in ["identity", "gzip"]:
        for path in ["/", "/runs", "/experiments"]:
            answer = get(port, path, Accept_Encoding=encoding)
            body: bytes = answer.body  # type: ignore[attr-defined]
            page = gzip.decompress(body) if answer.getheader("content-encoding") == "gzip" else body
            assert b"BACKEND_BASE_URL" in page
            assert page.rstrip().endswith(b"</html>")


def test_the_script_of_the_page_is_compressed(port: int) -> None:
    page: bytes = get(port, "/").body  # type: ignore[attr-defined]
    script = page.split(b'src="./static/js/')[1].split(b'"')[0].decode()
    assert get(port, f"/static/js/{script}", Accept_Encoding="gzip").getheader("content-encoding") == "gzip"


def test_a_port_in_use_is_one_clear_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(NotPossible, match=rf"^port {port} is in use; [^\n]*PINSCOPE_PORT={port + 1}$"):
            serve(port, lambda: Site(str))


def test_it_does_not_read_the_settings_of_other_apps_and_ends_when_it_is_told_to(
    foreign_settings: Mapping[str, str],
) -> None:
    port = free_port()
    with served(STARTS["pinscope dashboard"](port), port, foreign_settings) as child:
        assert child.stdout is not None
        assert get(port, "/runs").status == 200
        os.kill(child.pid, signal.SIGINT)
        output = child.communicate(timeout=20)[0]
        assert f"http://127.0.0.1:{port}" in output
        assert "Traceback" not in output
        assert not answers(port)
