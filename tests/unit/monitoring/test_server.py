"""The server of the metrics: local by default, closed to rebound names, and gone when it is left."""

from __future__ import annotations

import http.client
import socket
from urllib.parse import urlsplit

import pytest

from pinscope.errors import InvalidParameter, NotPossible
from pinscope.live.sampler import History
from pinscope.monitoring.server import MetricsServer, SnapshotCollector
from tests.data.synthetic_snapshot import snapshot


def server(address: str = "127.0.0.1") -> MetricsServer:
    history = History(latest=snapshot())
    return MetricsServer(SnapshotCollector(lambda: history, lambda: snapshot().taken_at), address, 0)


def ask(url: str, path: str = "/metrics", host: str | None = None, method: str = "GET") -> tuple[int, str]:
    where = urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=10)
    try:
        connection.request(method, path, headers={"Host": host} if host is not None else {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_metrics_are_served_under_their_path_only() -> None:
    with server() as running:
        assert running.url.startswith("http://127.0.0.1:")
        status, text = ask(running.url)
        assert status == 200
        assert "\npinscope_host_pinned_bytes 1.7179869184e+10\n" in text
        assert ask(running.url, "/")[0] == 404
        assert ask(running.url, method="POST")[0] == 501


def test_local_names_are_answered_and_one_that_was_made_to_point_here_is_refused() -> None:
    with server() as running:
        for host in ["127.0.0.1:1", "localhost", "localhost:10435", "[::1]:10435", "127.1.2.3"]:
            assert ask(running.url, host=host)[0] == 200
        for host in ["evil.example", "evil.example:10435", "127.0.0.1.evil.example", "", "localhost."]:
            status, text = ask(running.url, host=host)
            assert status == 403
            assert "pinscope_" not in text


def test_where_others_may_reach_it_every_name_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pinscope.monitoring.server.is_loopback", lambda _: False)  # a test listens on loopback only
    with server() as running:
        assert ask(running.url, host="gpu-host.example")[0] == 200


def test_version_6_of_the_protocol_is_served_where_there_is_one() -> None:
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError as error:
            pytest.skip(f"this machine has no IPv6 loopback: {error}")
    with server("::1") as running:
        assert running.url.startswith("http://[::1]:")
        assert ask(running.url)[0] == 200


def test_a_port_in_use_is_told_in_one_line() -> None:
    with server() as running:
        port = urlsplit(running.url).port
        assert port is not None
        with pytest.raises(NotPossible, match=f"port {port} of 127.0.0.1 is in use; choose another with --port"):
            MetricsServer(SnapshotCollector(History), "127.0.0.1", port)


def test_no_such_address_or_port() -> None:
    for address, port, complaint in [
        ("gpu-host", 1, "'gpu-host' is no IP address"), ("", 1, "'' is no IP address"),
        ("127.0.0.1", -1, "-1 is no port number"), ("127.0.0.1", 65536, "65536 is no port number"),
    ]:  # fmt: skip
        with pytest.raises(InvalidParameter, match=complaint):
            MetricsServer(SnapshotCollector(History), address, port)


def test_a_client_that_says_nothing_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pinscope.monitoring.server._Handler.timeout", 0.2)
    with server() as running:
        where = urlsplit(running.url)
        with socket.create_connection((where.hostname or "", where.port or 0), timeout=10) as client:
            assert client.recv(1) == b""
