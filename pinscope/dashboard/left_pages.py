"""Drops what a page still asks after its reader has gone to another one."""

from __future__ import annotations

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ClientState_pb2 import ClientState
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg


class LeftPages:
    """Passes on what the page that a browser shows, or waits for, asks; not what the page before it asks.

    Until the next page is drawn, the last one stands there and can be clicked. Streamlit 1.67 takes a click on a part
    that is drawn by itself (a fragment) for a return to that page: it shows the last page instead of the next, or tells
    the browser that the last page has begun and then draws into the next, which ends in an empty window.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a conversation on, without what is dropped."""
        if scope["type"] != "websocket":
            await self._app(scope, receive, send)
            return
        page = ""  # as Streamlit names it; empty until it is known

        async def receive_of_page() -> Message:
            nonlocal page
            while True:
                message = await receive()
                asked = _rerun(message.get("bytes"))
                if asked is None:
                    return message
                if not asked.fragment_id:
                    page = asked.page_script_hash
                    return message
                if asked.page_script_hash == page or not page:
                    return message

        async def send_of_page(message: Message) -> None:
            nonlocal page
            page = _shown(message.get("bytes")) or page
            await send(message)

        await self._app(scope, receive_of_page, send_of_page)


def _rerun(data: bytes | None) -> ClientState | None:
    """What a browser asks to be drawn, if it does."""
    message = BackMsg()
    try:
        message.ParseFromString(data or b"")
    except DecodeError:
        return None  # Streamlit says so
    return message.rerun_script if message.WhichOneof("type") == "rerun_script" else None


def _shown(data: bytes | None) -> str:
    """The page that the server found, each time it draws a whole one: another than the one asked for where that is no
    more, or was asked for by its address."""
    message = ForwardMsg()
    message.ParseFromString(data or b"")
    page: str = message.navigation.page_script_hash
    return page
