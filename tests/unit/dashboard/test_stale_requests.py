"""Which requests of a browser reach Streamlit while it goes from one page to another."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
from starlette.types import Message, Receive, Scope, Send
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

from pinscope.dashboard.middleware import StaleRequests

HOME, RUNS = "home", "runs"


def asked(page: str, fragment: str = "") -> bytes:
    """What a browser sends: a whole page, or a part of it."""
    message = BackMsg()
    message.rerun_script.page_script_hash = page
    message.rerun_script.fragment_id = fragment
    data: bytes = message.SerializeToString()
    return data


def drawn(page: str) -> bytes:
    """What the server sends when it has found the page."""
    message = ForwardMsg()
    message.navigation.page_script_hash = page
    data: bytes = message.SerializeToString()
    return data


def begun(page: str) -> bytes:
    """What the server sends when it begins to draw a page, or a part of it."""
    message = ForwardMsg()
    message.new_session.page_script_hash = page
    data: bytes = message.SerializeToString()
    return data


def passed(*conversation: bytes | tuple[str, bytes]) -> list[bytes]:
    """What reaches Streamlit of what the browser, or where it is named the server, send in turn."""
    left = [part if isinstance(part, tuple) else ("browser", part) for part in conversation]
    reached: list[bytes] = []

    async def receive() -> Message:
        sender, data = left.pop(0) if left else ("browser", None)
        assert sender == "browser"
        return {"type": "websocket.receive", "bytes": data} if data is not None else {"type": "websocket.disconnect"}

    async def send(message: Message) -> None:
        assert message["bytes"] is not None

    async def streamlit(scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "websocket"
        while True:
            while left and left[0][0] == "server":
                await send({"type": "websocket.send", "bytes": left.pop(0)[1]})
            message = await receive()
            if message["type"] == "websocket.disconnect":
                return
            reached.append(message["bytes"])

    with ThreadPoolExecutor(1) as thread:  # where a browser is driven, the main thread has a loop already
        thread.submit(asyncio.run, StaleRequests(streamlit)({"type": "websocket"}, receive, send)).result()
    return reached


CONVERSATIONS = {
    "what the last page asks once the next one is asked for is dropped": (
        [asked(HOME), asked(HOME, "card"), asked(RUNS), asked(HOME, "card")],
        [asked(HOME), asked(HOME, "card"), asked(RUNS)],
    ),
    "the next page may ask, and so may the last one after a return": (
        [asked(HOME), asked(RUNS), asked(RUNS, "bar"), asked(HOME), asked(HOME, "card")],
        [asked(HOME), asked(RUNS), asked(RUNS, "bar"), asked(HOME), asked(HOME, "card")],
    ),
    "a late drawing of a part of the last page does not bring it back": (
        [asked(HOME), asked(RUNS), ("server", begun(HOME)), asked(HOME, "card")],
        [asked(HOME), asked(RUNS)],
    ),
    "where the page asked for is no more, the one drawn instead may ask": (
        [asked("gone"), ("server", drawn(HOME)), asked(HOME, "card")],
        [asked("gone"), asked(HOME, "card")],
    ),
    "a page asked for by its address may ask once it is found": (  # a new server begins with Home
        [asked(""), ("server", begun(HOME)), ("server", drawn(RUNS)), asked(RUNS, "bar"), asked(HOME, "card")],
        [asked(""), asked(RUNS, "bar")],
    ),
    "before a page is known everything is passed on": (
        [asked(HOME, "card"), asked("")],
        [asked(HOME, "card"), asked("")],
    ),
}
"""What holds → what the browser and the server send, in turn, and what reaches Streamlit."""


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_only_the_page_that_is_shown_or_waited_for_may_ask(name: str) -> None:
    conversation, reaching = CONVERSATIONS[name]
    assert passed(*conversation) == reaching


@pytest.mark.parametrize("data", [b"", b"\xff\xff", BackMsg(clear_cache=True).SerializeToString()])
def test_what_is_no_request_for_a_drawing_is_passed_on(data: bytes) -> None:
    assert passed(asked(HOME), data) == [asked(HOME), data]
