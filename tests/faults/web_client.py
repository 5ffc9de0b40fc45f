"""A client of the dashboard that may do everything wrong: raw requests, raw frames, connections that break off."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable
from typing import Any

TEXT, BINARY, CLOSE, PING = 1, 2, 8, 9
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


def connect(port: int) -> socket.socket:
    """A connection to the server."""
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)


def answer(port: int, sent: bytes) -> tuple[int, bytes]:
    """Status of the server's answer, and what it says; 0 if it hangs up without a word."""
    with connect(port) as client, client.makefile("rb") as received:
        client.sendall(sent)
        status = received.readline()
        size = 0 if status[9:10] in (b"1", b"2", b"3") else -1
        while line := received.readline().strip().lower():
            name, _, value = line.partition(b":")
            size = int(value) if name == b"content-length" else size
        return (int(status.split(b" ", 2)[1]) if status else 0), received.read(size)


def open_websocket(port: int) -> socket.socket:
    """A WebSocket, as the dashboard's own page opens it."""
    client = connect(port)
    client.sendall(upgrade((("Host", f"127.0.0.1:{port}"), ("Origin", f"http://127.0.0.1:{port}"))))
    head = client.recv(65536)
    assert head.startswith(b"HTTP/1.1 101 "), head
    return client


def frame(payload: bytes, kind: int = BINARY, *, last: bool = True, masked: bool = True, reserved: int = 0) -> bytes:
    """A frame of a WebSocket (RFC 6455, section 5.2)."""
    size = len(payload)
    mark = 0x80 if masked else 0
    if size < 126:
        length = bytes([mark | size])
    elif size < 65536:
        length = struct.pack(">BH", mark | 126, size)
    else:
        length = struct.pack(">BQ", mark | 127, size)
    mask = os.urandom(4) if masked else b""
    hidden = bytes(byte ^ mask[place % 4] for place, byte in enumerate(payload)) if masked else payload
    return bytes([last << 7 | reserved << 4 | kind]) + length + mask + hidden


def show_page(**fields: Any) -> bytes:
    """The message by which a browser asks for a page to be drawn."""
    from streamlit.proto.BackMsg_pb2 import BackMsg

    message = BackMsg()
    message.rerun_script.query_string = ""
    message.rerun_script.page_name = fields.get("page", "")
    encoded: bytes = message.SerializeToString()
    return encoded


def break_off(client: socket.socket) -> None:
    """End the connection as a crash does: with a reset, without a farewell."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
