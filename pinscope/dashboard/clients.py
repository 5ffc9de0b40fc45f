"""How many clients are served at once, and how long each may take: a slow one keeps nobody else away.

Streamlit's server, uvicorn, has no limits of this kind, and asyncio takes all connections that there are at once.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

HEAD_SECONDS = 10.0
"""For a request without its body, the first message of a WebSocket, or an answer of which nothing more is read."""
BODY_SECONDS = 300.0
"""For a request with its body: a bundle may come over a slow line."""
SHARE_OF_DESCRIPTORS = 0.625
"""The sampler keeps a quarter of them (``kept_files.py``)."""
MOST_DESCRIPTORS = 2048
WANTED_DESCRIPTORS = 4096
"""For the whole process, where it may have as many."""
PAGE_DESCRIPTORS = 4
"""An open page's WebSocket, and the event loop that Streamlit gives its session; other connections have one."""
_LOOK_SECONDS = 0.1
_GRACE_SECONDS = 0.2
"""While all places are taken, a client that owes something may take this long."""
_LOG_SECONDS = 60.0
_LOGGER = logging.getLogger("uvicorn.error")


@dataclass(eq=False)
class _Client:
    """A connection.

    Attributes:
        protocol: uvicorn's, for HTTP.
        since: when its state last changed, in the loop's seconds.
        has_spoken: as a WebSocket.
    """

    protocol: Any
    since: float
    connecting: asyncio.Task[None] | None = None
    has_spoken: bool = False
    state: object = None

    def look(self, now: float) -> None:
        """Note whether it got further."""
        transport, cycle = self.protocol.transport, self.protocol.cycle
        state = transport and (transport.get_protocol(), transport.is_closing(), transport.get_write_buffer_size())
        state = (state, cycle, cycle and cycle.response_complete)
        if state != self.state:
            self.state, self.since = state, now

    def seconds(self) -> float | None:
        """How long its state may last; ``None``: as long as it likes, as nothing is waited for."""
        transport, cycle = self.protocol.transport, self.protocol.cycle
        if transport is None or transport.is_closing():
            return HEAD_SECONDS
        if transport.get_protocol() is not self.protocol:  # a WebSocket, which uvicorn looks after by pings
            return None if self.has_spoken else HEAD_SECONDS
        if cycle is None or cycle.response_complete or transport.get_write_buffer_size():
            return HEAD_SECONDS
        return BODY_SECONDS if cycle.more_body else None


_CLIENT: ContextVar[_Client | None] = ContextVar("client", default=None)


def has_spoken() -> None:
    """The client of this WebSocket has sent a message."""
    if client := _CLIENT.get():
        client.has_spoken = True


class _Clients:
    """Accepts as many as there are places for, and hangs up on those that are late; further ones wait in the kernel.

    Args:
        most: descriptors that they may have together.
    """

    def __init__(self, most: int) -> None:
        self._most = self._free = most
        self._open: dict[socket.socket, _Client] = {}
        self._loop = asyncio.get_running_loop()
        self._logged_at = -_LOG_SECONDS

    async def accept(
        self, listener: socket.socket, protocol: Callable[[], asyncio.Protocol], context: ssl.SSLContext | None
    ) -> None:
        """Until the listening socket is closed."""
        while listener.fileno() >= 0:
            if self._free <= 0:
                await asyncio.sleep(_LOOK_SECONDS / 5)
                continue
            try:
                connection, _ = await self._loop.sock_accept(listener)
            except OSError:  # the client has left already, or others took all descriptors
                await asyncio.sleep(_LOOK_SECONDS)
                continue
            client = _Client(protocol(), self._loop.time())
            _CLIENT.set(client)  # what the connection starts inherits it
            client.connecting = self._loop.create_task(self._connect(connection, client, context))
            self._open[connection] = client
            self._free -= 1

    async def _connect(self, connection: socket.socket, client: _Client, context: ssl.SSLContext | None) -> None:
        with suppress(OSError):  # it left, or speaks no TLS
            await self._loop.connect_accepted_socket(lambda: client.protocol, connection, ssl=context)

    async def look_after(self) -> None:
        """Again and again: hang up on who is late, and, while all places are taken, on the slowest."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            self._hang_up(self._loop.time())

    def _hang_up(self, now: float) -> None:
        late, slow = list[socket.socket](), list[tuple[bool, float, socket.socket]]()
        taken = 0
        for connection, client in list(self._open.items()):
            if connection.fileno() < 0:
                del self._open[connection]
                continue
            client.look(now)
            limit, lasted = client.seconds(), now - client.since
            taken += PAGE_DESCRIPTORS if client.has_spoken else 1
            if limit is not None and lasted > limit:
                late.append(connection)
            elif limit is not None and lasted > _GRACE_SECONDS:
                cycle = client.protocol.cycle
                has_asked = cycle is not None and not cycle.more_body
                slow.append((has_asked, client.since, connection))
        if taken - len(late) >= self._most:
            slow.sort(key=itemgetter(0, 1))  # those that never asked for anything first, the oldest first
            late += [connection for *_, connection in slow[: self._most // 5]]
            self._log(now)
        for connection in late:
            client = self._open.pop(connection)
            if client.protocol.transport:
                client.protocol.transport.abort()
            elif client.connecting:
                client.connecting.cancel()
        self._free = self._most - taken + len(late)

    def _log(self, now: float) -> None:
        """One line for all of them."""
        if now - self._logged_at > _LOG_SECONDS:
            self._logged_at = now
            _LOGGER.warning("%d connections are open, the most; those of slow clients are closed.", len(self._open))


@contextmanager
def bounded_clients() -> Iterator[None]:
    """Whatever listens in this thread's event loop from now on has these limits, until the block ends."""
    loop, tasks = asyncio.get_running_loop(), list[asyncio.Task[None]]()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft = max(soft, min(hard, WANTED_DESCRIPTORS))
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    clients = _Clients(min(MOST_DESCRIPTORS, int(soft * SHARE_OF_DESCRIPTORS)))
    create_server = loop.create_server

    async def bounded(
        protocol: Callable[[], asyncio.Protocol],
        *,
        sock: socket.socket | None = None,
        ssl: ssl.SSLContext | None = None,
        **settings: Any,
    ) -> asyncio.Server:
        accepts_itself = sock is None or not hasattr(protocol(), "cycle")  # not as Streamlit 1.67 starts uvicorn 0.54
        if sock is not None and not accepts_itself:
            tasks.append(loop.create_task(clients.accept(sock, protocol, ssl)))
        return await create_server(protocol, sock=sock, ssl=ssl, start_serving=accepts_itself, **settings)

    loop.create_server = bounded  # type: ignore[method-assign, assignment]
    tasks.append(loop.create_task(clients.look_after()))
    try:
        yield
    finally:
        loop.create_server = create_server  # type: ignore[method-assign]
        for task in tasks:
            task.cancel()
