"""Which requests of a browser reach Streamlit while it goes from one page to another."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from starlette.types import Message, Receive, Scope, Send
from streamlit.proto.BackMsg_pb2 import BackMsg

from pinscope.dashboard.middleware import StaleRequests

HOME, RUNS = "home", "runs"


def asked(page: str, fragment: str = "") -> bytes:
    """What a browser sends: a whole page, or a part of it."""
    message = BackMsg()
    message.rerun_script.page_script_hash = page
    message.rerun_script.fragment_id = fragment
    data: bytes = message.SerializeToString()
    return data


def passed(sent: Sequence[bytes]) -> list[bytes]:
    """What reaches Streamlit of what the browser sends."""
    left: list[Message] = [{"type": "websocket.receive", "bytes": data} for data in sent]
    left.append({"type": "websocket.disconnect"})
    reached: list[bytes] = []

    async def receive() -> Message:
        return left.pop(0)

    async def send(message: Message) -> None:
        raise AssertionError(message)

    async def streamlit(scope: Scope, receive: Receive, send: Send) -> None:
        while (message := await receive())["type"] != "websocket.disconnect":
            reached.append(message["bytes"])

    with ThreadPoolExecutor(1) as thread:  # where a browser is driven, the main thread has a loop already
        thread.submit(asyncio.run, StaleRequests(streamlit)({"type": "websocket"}, receive, send)).result()
    return reached


STALE = asked(HOME, "card")
CONVERSATIONS = {
    "what the last page asks once the next one is asked for is dropped": (
        [asked(HOME), STALE, asked(RUNS), STALE],
        [asked(HOME), STALE, asked(RUNS)],
    ),
    "the next page may ask, and so may the last one after a return": (
        [asked(HOME), asked(RUNS), asked(RUNS, "bar"), asked(HOME), STALE],
        [asked(HOME), asked(RUNS), asked(RUNS, "bar"), asked(HOME), STALE],
    ),
    "before a page is known everything is passed on": ([STALE, asked(""), STALE], [STALE, asked(""), STALE]),
}


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_only_the_page_that_is_asked_for_may_ask(name: str) -> None:
    conversation, reaching = CONVERSATIONS[name]
    assert passed(conversation) == reaching


@pytest.mark.parametrize("data", [b"", b"\xff\xff", BackMsg(clear_cache=True).SerializeToString()])
def test_what_is_no_request_for_a_drawing_is_passed_on(data: bytes) -> None:
    assert passed([asked(HOME), data]) == [asked(HOME), data]
