"""Slow clients of a server: each has its time. The dashboard's own: test_serve.py here, test_overload.py in faults."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from pinscope.dashboard import clients
from tests.faults import web_client

PLACES = 20
HEADERS = [("Host", "localhost"), ("Connection", "close")]


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    """Read a request whole, then answer it with more than a connection holds."""
    del scope
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"50000000")]})
    await send({"type": "http.response.body", "body": b"x" * 50_000_000})


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Of a server with little time and few places."""
    monkeypatch.setattr(clients, "HEAD_SECONDS", 1.0)
    monkeypatch.setattr(clients, "BODY_SECONDS", 3.0)
    monkeypatch.setattr(clients, "WANTED_DESCRIPTORS", 0)
    monkeypatch.setattr(clients, "MOST_DESCRIPTORS", PLACES)
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(answer, lifespan="off", log_config=None, timeout_keep_alive=30))

    async def serve() -> None:
        with clients.bounded_clients():
            await server.serve(sockets=[listener])

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    yield listener.getsockname()[1]
    server.should_exit = True
    thread.join()


def seconds_until_hung_up(client: socket.socket, sends: bytes) -> float:
    """From now on, while it sends this again and again."""
    begun = time.monotonic()
    with suppress(OSError):
        while time.monotonic() - begun < 10:
            client.sendall(sends)
            time.sleep(0.05)
    return time.monotonic() - begun


def test_a_body_has_more_time_than_a_head_and_not_all_the_time(port: int) -> None:
    with web_client.connect(port) as head, web_client.connect(port) as body:
        begun = time.monotonic()
        body.sendall(web_client.request("PUT", "/", [*HEADERS, ("Content-Length", "1000000")]))
        assert 0.8 < seconds_until_hung_up(head, b"G") < 2.5
        seconds_until_hung_up(body, b"x")
        assert 2.8 < time.monotonic() - begun < 6


def test_an_answer_of_which_nothing_more_is_read_is_given_up(port: int) -> None:
    with web_client.connect(port) as stopped, web_client.connect(port) as slow:
        for client in (stopped, slow):
            client.sendall(web_client.request("GET", "/", HEADERS))
        read = 0
        while part := slow.recv(1_000_000):
            read += len(part)
            time.sleep(0.03)
        assert read > 50_000_000
        received = 0
        with suppress(ConnectionResetError):
            while part := stopped.recv(1_000_000):
                received += len(part)
        assert received < read


def test_while_all_places_are_taken_the_oldest_of_those_that_say_nothing_give_way(
    port: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "HEAD_SECONDS", 60.0)
    with ExitStack() as opened:
        silent = [opened.enter_context(web_client.connect(port)) for _ in range(3 * PLACES)]
        begun = time.monotonic()
        status, _ = web_client.answer(port, web_client.request("GET", "/", HEADERS))
        assert status == 200
        assert time.monotonic() - begun < 10
        assert silent[0].recv(1) == b""
        silent[-1].setblocking(False)
        with pytest.raises(BlockingIOError):
            silent[-1].recv(1)
    assert [record.message for record in caplog.records if "slow clients" in record.message] == [
        f"{PLACES} connections are open, the most; those of slow clients are closed."
    ]
