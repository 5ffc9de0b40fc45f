"""A connection to a server that can be cut, and that counts what goes through."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

_PIECE = 65536


class Proxy:
    """Passes connections on to a port of this machine.

    Args:
        port: of the server.
        strikes: what to do before the n-th piece of data from a client is passed on, by n.
    """

    def __init__(self, port: int, strikes: dict[int, Callable[[Proxy], None]]) -> None:
        self._server_port = port
        self._strikes = dict(strikes)
        self._pieces = 0
        self._lock, self._striking = threading.Lock(), threading.Lock()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._closed = self._refusing = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])

    def __enter__(self) -> Self:
        self._begin(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in list(self._threads):
            thread.join()

    @property
    def pieces(self) -> int:
        """How many pieces of data came from clients."""
        return self._pieces

    def cut(self) -> None:
        """Break all connections."""
        with self._lock:
            for one in self._open:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def refuse(self, refusing: bool) -> None:
        """Break each new connection as well, or no longer."""
        self._refusing = refusing

    def _begin(self, target: Callable[..., None], *arguments: socket.socket) -> None:
        thread = threading.Thread(target=target, args=arguments, name="tests-proxy", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                if self._refusing:
                    raise ConnectionRefusedError
                server = socket.create_connection(("127.0.0.1", self._server_port))
            except OSError:
                client.close()
                continue
            with self._lock:
                self._open |= {client, server}
            self._begin(self._pass_on, client, server)
            self._begin(self._pass_on, server, client)

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        from_client = source.getsockname()[1] == self.port
        with suppress(OSError):
            while piece := source.recv(_PIECE):
                if from_client:
                    self._count()
                target.sendall(piece)
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._open.discard(source)
        source.close()

    def _count(self) -> None:
        with self._lock:
            self._pieces += 1
            strike = self._strikes.pop(self._pieces, None)
        if strike:
            with self._striking:  # one after the other: what is stopped cannot be stopped once more
                strike(self)
