"""What every request passes before it reaches Streamlit."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from mimetypes import guess_type
from pathlib import Path
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ClientState_pb2 import ClientState
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

from pinscope.dashboard.gate import Gate, Origin
from pinscope.dashboard.pages import MANUAL_ROOT
from pinscope.errors import InvalidParameter

if TYPE_CHECKING:
    from pinscope.dashboard.live_board import Board
    from pinscope.manual.site import Site


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


LIVE_ROOT = "/live/"
WINDOWS: Mapping[float, str] = {60.0: "1 minute", 300.0: "5 minutes", 900.0: "15 minutes", 3600.0: "1 hour"}
"""Seconds that a reader may look back."""
INTERVALS = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds from one snapshot to the next among which a reader may choose."""
DEFAULT_WINDOW_SECONDS = 300.0
_FOLDER = Path(__file__).parent
_FILES: Mapping[str, tuple[bytes, str]] = {
    name: ((_FOLDER / name).read_bytes(), kind)
    for name, kind in (("now.js", "text/javascript"), ("now_chart.js", "text/javascript"), ("now.css", "text/css"))
}
VERSION = hashlib.sha256(b"".join(content for content, _ in _FILES.values())).hexdigest()[:12]
"""Of the files, for browsers that keep them."""


@lru_cache(maxsize=1)
def board() -> Board:
    """The one of this server."""
    from pinscope.dashboard.live_board import Board, watch  # noqa: PLC0415 - loaded when somebody looks

    return Board(lambda: watch().look())


class LiveFeed:
    """Answers what is asked below :data:`LIVE_ROOT`, and passes everything else on."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer or pass on."""
        if scope["type"] != "http" or not scope["path"].startswith(LIVE_ROOT):
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        answer = await run_in_threadpool(self._answer, request.method, scope["path"].removeprefix(LIVE_ROOT), request)
        await answer(scope, receive, send)

    def _answer(self, method: str, name: str, request: Request) -> Response:
        asked = request.query_params
        if name == "interval" and method == "POST":
            return _set_interval(asked.get("seconds", ""))
        if method not in ("GET", "HEAD"):
            return PlainTextResponse("Not for that.", status_code=405)
        if name in _FILES:
            content, kind = _FILES[name]
            return Response(content, media_type=kind, headers={"cache-control": "max-age=31536000, immutable"})
        found = self._found(name, asked)
        if found is None:
            return PlainTextResponse("There is no such thing.", status_code=404)
        answer = Response(found, media_type="application/json", headers={"cache-control": "no-store"})
        if name == "snapshot.json":
            answer.headers["content-disposition"] = 'attachment; filename="pinscope-snapshot.json"'
        return answer

    def _found(self, name: str, asked: QueryParams) -> bytes | None:
        if name == "now.json":
            window = next((one for one in WINDOWS if f"{one:g}" == asked.get("window")), DEFAULT_WINDOW_SECONDS)
            return board().answer(window, asked.get("known", ""), asked.get("chosen", ""))
        if name == "facts.json":
            return board().facts(asked.get("at", ""))
        return board().snapshot(asked.get("at", "")) if name == "snapshot.json" else None


def _set_interval(text: str) -> Response:
    try:
        seconds = float(text)
    except ValueError:
        return PlainTextResponse("An interval is a number of seconds.", status_code=400)
    from pinscope.dashboard.live_board import watch  # noqa: PLC0415 - loaded when somebody looks

    try:
        watch().set_interval(seconds)
    except InvalidParameter as error:
        return PlainTextResponse(str(error), status_code=400)
    return Response(status_code=204)


MakeSite = Callable[[], "Site"]
"""Gives the documentation. It is made when it is first asked for: that loads half of PinScope."""


class ManualPages:
    """Answers what is asked below :data:`MANUAL_ROOT`, and passes everything else on."""

    def __init__(self, app: ASGIApp, site: MakeSite) -> None:
        self._app = app
        self._files = lru_cache(maxsize=1)(lambda: _files(site()))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer or pass on."""
        if scope["type"] != "http" or not scope["path"].startswith(MANUAL_ROOT):
            await self._app(scope, receive, send)
            return
        path = scope["path"].removeprefix(MANUAL_ROOT) or "index.html"
        content = (await run_in_threadpool(self._files)).get(path)  # the first call renders all pages
        if content is None:
            answer: Response = PlainTextResponse("There is no such page.", status_code=404)
        else:
            answer = Response(content, media_type=guess_type(path, strict=False)[0])
        await answer(scope, receive, send)


def _files(site: Site) -> dict[str, bytes]:
    from pinscope.manual.site import site_files  # noqa: PLC0415 - only for those who read the documentation

    return dict(site_files(site))


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
        if scope["type"] != "http" or scope["method"] != "GET" or "range" in Headers(scope=scope):
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


def middleware(site: MakeSite, named: Sequence[Origin] = ()) -> tuple[Middleware, ...]:
    """From the outside in.

    Args:
        site: gives the documentation.
        named: origins under which the dashboard is reached, beside its own.
    """
    return (
        Middleware(SafeHeaders),
        Middleware(Gate, named=named),
        Middleware(StaleRequests),
        # Streamlit sends its JavaScript (megabytes) uncompressed, which is slow through an SSH tunnel to a GPU host.
        Middleware(GZipMiddleware, minimum_size=1000, compresslevel=4),
        Middleware(LiveFeed),
        Middleware(ManualPages, site=site),
        # Inside of compression, which would hide the page from it.
        Middleware(KnownBase),
    )
