"""Clients of the dashboard that keep it waiting, as a process: python -m tests.faults.slow_clients PORT COUNT AGAIN.

Each that is dropped connects again, at once or after as many seconds as AGAIN says. They end with their standard
input, and print how often they connected.
"""

from __future__ import annotations

import resource
import select
import selectors
import socket
import sys
import time
from collections import deque
from contextlib import suppress

from tests.faults.web_client import request, upgrade

BYTE_SECONDS = 3.0
"""From one byte to the next of those that send byte by byte."""
BYTE_BY_BYTE = (2, 4, 5, 9)
"""Their places among :func:`ways`."""


def ways(port: int) -> list[bytes]:
    """What each kind of client sends at once."""
    own = (("Host", f"127.0.0.1:{port}"), ("Origin", f"http://127.0.0.1:{port}"))
    body = (*own, ("Content-Type", "multipart/form-data; boundary=x"), ("Content-Length", "1000000"))
    head = request("GET", "/", own)[:-2]
    return [
        b"",
        head,
        head + b"X-Slow: ",
        b"",
        request("PUT", "/_stcore/upload_file/one/two", body) + b"--x\r\n",
        request("GET", "/_stcore/health", body) + b"--x\r\n",
        upgrade(own)[:-20],
        upgrade(own),
        request("GET", "/_stcore/health", own),
        request("GET", "/_stcore/health", own) + head,
    ]


class _Clients:
    """All of them."""

    def __init__(self, port: int, count: int, again_seconds: float) -> None:
        self._port, self._again_seconds, self._ways = port, again_seconds, ways(port)
        self._events = selectors.DefaultSelector()
        self._dropped = deque((0.0, number % len(self._ways)) for number in range(count))
        self.connected = 0

    def act(self) -> None:
        """Connect, send what comes first, notice what was dropped: a tenth of a second, or less."""
        now = time.monotonic()
        while self._dropped and now - self._dropped[0][0] >= self._again_seconds:
            client = socket.socket()
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", self._port))
            self._events.register(client, selectors.EVENT_WRITE, self._dropped.popleft()[1])
            self.connected += 1
        for key, ready in self._events.select(0.1):
            client, kind = key.fileobj, key.data
            assert isinstance(client, socket.socket)
            there = True
            try:
                if ready & selectors.EVENT_WRITE:
                    client.send(self._ways[kind])
                    self._events.modify(client, selectors.EVENT_READ, kind)
                else:
                    there = bool(client.recv(65536))
            except OSError:
                there = False
            if not there:
                self._events.unregister(client)
                client.close()
                self._dropped.append((time.monotonic(), kind))

    def send_a_byte(self) -> None:
        """Of those that send byte by byte."""
        for key in self._events.get_map().values():
            if key.data in BYTE_BY_BYTE and key.events == selectors.EVENT_READ:
                assert isinstance(key.fileobj, socket.socket)
                with suppress(OSError):
                    key.fileobj.send(b"x")


def main(port: int, count: int, again_seconds: float) -> int:
    """Until standard input ends; how often they connected."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, count + 100), hard))
    clients, byte_at = _Clients(port, count, again_seconds), time.monotonic()
    while not select.select([sys.stdin], [], [], 0)[0]:
        clients.act()
        if time.monotonic() - byte_at > BYTE_SECONDS:
            byte_at = time.monotonic()
            clients.send_a_byte()
    return clients.connected


if __name__ == "__main__":
    sys.stdout.write(f"{main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))}\n")
