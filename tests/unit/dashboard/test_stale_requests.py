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


def found(page: str) -> bytes:
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


def passed(*conversation: tuple[str, bytes]) -> list[bytes]:
    """What reaches Streamlit of a conversation of what the browser and the server ``"send"``, in turn."""
    left = list(conversation)
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


def test_what_the_last_page_asks_is_dropped_once_the_next_one_is_asked_for() -> None:
    click, go, late = asked(HOME, "card"), asked(RUNS), asked(HOME, "card")
    assert passed(("browser", asked(HOME)), ("browser", click), ("browser", go), ("browser", late)) == [
        asked(HOME),
        click,
        go,
    ]


def test_the_next_page_may_ask_and_so_may_the_last_one_after_a_return() -> None:
    conversation = [asked(HOME), asked(RUNS), asked(RUNS, "bar"), asked(HOME), asked(HOME, "card")]
    assert passed(*(("browser", data) for data in conversation)) == conversation


def test_a_late_drawing_of_a_part_of_the_last_page_does_not_bring_it_back() -> None:
    conversation = [
        ("browser", asked(HOME)),
        ("browser", asked(RUNS)),
        ("server", begun(HOME)),
        ("browser", asked(HOME, "card")),
    ]
    assert passed(*conversation) == [asked(HOME), asked(RUNS)]


def test_where_the_page_asked_for_is_no_more_the_one_drawn_instead_may_ask() -> None:
    conversation = [("browser", asked("gone")), ("server", found(HOME)), ("browser", asked(HOME, "card"))]
    assert passed(*conversation) == [asked("gone"), asked(HOME, "card")]


def test_a_page_asked_for_by_its_address_may_ask_once_it_is_found() -> None:
    """A new server begins with Home until it knows its pages."""
    conversation = [
        ("browser", asked("")), ("server", begun(HOME)), ("server", found(RUNS)), ("browser", asked(RUNS, "bar")),
        ("browser", asked(HOME, "card")),
    ]  # fmt: skip
    assert passed(*conversation) == [asked(""), asked(RUNS, "bar")]


def test_before_a_page_is_known_everything_is_passed_on() -> None:
    assert passed(("browser", asked(HOME, "card")), ("browser", asked(""))) == [asked(HOME, "card"), asked("")]


@pytest.mark.parametrize("data", [b"", b"\xff\xff", BackMsg(clear_cache=True).SerializeToString()])
def test_what_is_no_request_for_a_drawing_is_passed_on(data: bytes) -> None:
    assert passed(("browser", asked(HOME)), ("browser", data)) == [asked(HOME), data]
