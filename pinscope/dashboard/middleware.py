"""What every request passes before it reaches Streamlit."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ClientState_pb2 import ClientState
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

from pinscope.dashboard.gate import Gate, Origin
from pinscope.dashboard.pages import MANUAL_ROOT

if TYPE_CHECKING:
    pass


class StaleRequests:
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


CONTENT_POLICY: Mapping[str, str] = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self' 'unsafe-inline'",
    "img-src": "'self' data: blob:",
    "font-src": "'self' data:",
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
}
"""What a page may load: its own server's, no script that stands in the page but for those of :func:`_hashes`, no eval.

Styles may stand in the page: Streamlit, Plotly and Vega write theirs there while they draw. Icons of their toolbars are
``data:`` fonts and pictures, and a chart that is saved as a picture is a ``blob:``.
"""
FILE_POLICY = "default-src 'none'; frame-ancestors 'none'; sandbox"
"""Of a file to be downloaded, should a browser show it."""
SAFE_HEADERS = {
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_BASE = b"<head><script>window.__streamlit = { BACKEND_BASE_URL: window.location.origin };</script>"
_INLINE_SCRIPT = re.compile(rb"<script>(.*?)</script>", re.DOTALL)


def content_policy(scripts: str = "") -> str:
    """:data:`CONTENT_POLICY` as a header, with sources of scripts beside the server's own."""
    directives = {**CONTENT_POLICY, "script-src": f"{CONTENT_POLICY['script-src']} {scripts}".rstrip()}
    return "; ".join(f"{name} {sources}" for name, sources in directives.items())


class SafeHeaders:
    """Adds :data:`SAFE_HEADERS` and a Content Security Policy to every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and the answer back."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SAFE_HEADERS.items():
                    headers[name] = value
                policy = FILE_POLICY if "content-disposition" in headers else content_policy()
                headers.setdefault("content-security-policy", policy)
            await send(message)

        await self._app(scope, receive, send_with_headers)


class KnownBase:
    """Tells Streamlit's page where its server is, and lets it run no scripts but its own.

    Without this, a page opened at /runs first asks for /runs/_stcore/health, in case the server lived below
    /runs, and every reload leaves two "404 (Not Found)" errors in the browser's console.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and the answer back; a page in one piece, with the address in its head."""
        held: Message | None = None
        body = b""

        async def send_page(message: Message) -> None:
            nonlocal held, body
            if message["type"] == "http.response.start" and _is_page(message):
                held = message
                return
            if held is None:
                await send(message)
                return
            body += message.get("body", b"")
            if message.get("more_body"):
                return
            page = body.replace(b"<head>", _BASE, 1)
            headers = MutableHeaders(scope=held)
            # They tell of Streamlit's page, not of this one.
            del headers["content-length"], headers["etag"], headers["last-modified"]
            headers["content-security-policy"] = content_policy(_hashes(page))
            await send(held)
            await send({"type": "http.response.body", "body": page})

        # HEAD has no body to put an address into, and a range of a page none that could be measured.
        is_page = scope["type"] == "http" and scope["method"] == "GET" and not scope["path"].startswith(MANUAL_ROOT)
        if not is_page or "range" in Headers(scope=scope):
            await self._app(scope, receive, send)
            return
        uncompressed = [header for header in scope["headers"] if header[0] != b"accept-encoding"]
        await self._app({**scope, "headers": uncompressed}, receive, send_page)


def _is_page(message: Message) -> bool:
    headers = Headers(raw=message["headers"])
    is_file = "content-disposition" in headers  # a report to be downloaded stays as it is
    return message["status"] == 200 and headers.get("content-type", "").startswith("text/html") and not is_file


def _hashes(page: bytes) -> str:
    """The page's own inline scripts, as sources of a policy that allows no other."""
    digests = (hashlib.sha256(script).digest() for script in _INLINE_SCRIPT.findall(page))
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)


def middleware(named: Sequence[Origin] = ()) -> tuple[Middleware, ...]:
    """From the outside in.

    Args:
        named: origins under which the dashboard is reached, beside its own.
    """
    return (
        Middleware(SafeHeaders),
        Middleware(Gate, named=named),
        Middleware(StaleRequests),
        # Streamlit sends its JavaScript (megabytes) uncompressed, which is slow through an SSH tunnel to a GPU host.
        Middleware(GZipMiddleware, minimum_size=1000, compresslevel=4),
        # Inside of compression, which would hide the page from it.
        Middleware(KnownBase),
    )
