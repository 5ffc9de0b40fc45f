"""Keeps what clients do wrong, or leave undone, from ending in tracebacks of Streamlit or its server."""

from __future__ import annotations

import logging
from contextlib import suppress

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pinscope.dashboard.clients import has_spoken

NOT_BINARY = 1003
"""WebSocket's code (RFC 6455) for data of a kind that is not accepted."""
_SESSION_PLACE = 2
"""Of a session's name among the protocols that a browser lists: it goes on with that one, and need not say anything."""
_LOGGERS = ("streamlit.web.server.starlette.starlette_websocket", "uvicorn.error")


class WholeConversations:
    """Shows Streamlit a client that is gone as one that left, and a text frame as the end."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the conversation on."""
        if scope["type"] != "websocket":
            await self._app(scope, receive, send)
            return

        first: list[Message] = []

        async def receive_binary() -> Message:
            message = first.pop() if first else await receive()
            if message["type"] != "websocket.receive" or message.get("bytes") is not None:
                return message
            await send_while_there({"type": "websocket.close", "code": NOT_BINARY})
            return {"type": "websocket.disconnect", "code": NOT_BINARY}

        async def send_while_there(message: Message) -> None:
            try:
                await send(message)
            except (OSError, RuntimeError):
                # The connection is gone or being closed, which the next message received says, too. Streamlit takes
                # an error here for one of its own.
                if message["type"] not in ("websocket.accept", "websocket.send", "websocket.close"):
                    raise
            if message["type"] == "websocket.accept":
                await wait_for_first()

        async def wait_for_first() -> None:
            # Streamlit opens a session next, which takes descriptors of its own and outlives the client.
            if len(scope["subprotocols"]) <= _SESSION_PLACE:
                first.append(await receive())
                if first[0]["type"] == "websocket.disconnect":
                    raise _NothingSaidError
            has_spoken()

        with suppress(_NothingSaidError):
            await self._app(scope, receive_binary, send_while_there)


class _NothingSaidError(Exception):
    """A client has gone before it asked for a page."""


class UnreadableIsOneLine(logging.Filter):
    """What a client sent that cannot be decoded is logged as one line."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record pass, without a traceback if its error is that of a client."""
        if record.exc_info and isinstance(record.exc_info[1], (DecodeError, UnicodeDecodeError)):
            record.exc_info = None
        return True


def log_clients_in_one_line() -> None:
    """Put the filter before the loggers that meet what clients send; once is enough."""
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        if not any(isinstance(one, UnreadableIsOneLine) for one in logger.filters):
            logger.addFilter(UnreadableIsOneLine())
