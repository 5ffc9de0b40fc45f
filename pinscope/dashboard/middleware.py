"""What every request passes before it reaches Streamlit."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.resources import files
from pathlib import Path

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from streamlit.proto.BackMsg_pb2 import BackMsg

from pinscope.errors import InvalidParameter

_FILE = Path(__file__).with_name("config.toml")
ADDRESS = "127.0.0.1"
ALLOWED_HOSTS = ("localhost", ADDRESS)
"""Names under which a browser may ask for the dashboard; any other name is a rebound one."""


def _dotted(table: Mapping[str, object], before: str = "") -> Iterator[tuple[str, object]]:
    """A TOML table's settings as Streamlit names them, such as ``theme.light.textColor``."""
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _dotted(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


SETTINGS: Mapping[str, object] = dict(_dotted(tomllib.loads(_FILE.read_text(encoding="utf-8"))))


VARIABLE = "PINSCOPE_ORIGINS"
_ORIGIN = re.compile(
    r"https?://([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?|\[[0-9a-f:.]{2,45}\])(:[1-9][0-9]{0,4})?", re.ASCII
)


def own_origins(port: int) -> tuple[str, ...]:
    """The dashboard's own, where it listens on that port."""
    return named_origins([f"http://{host}:{port}" for host in ALLOWED_HOSTS])


def named_origins(texts: Iterable[str]) -> tuple[str, ...]:
    """What the owner of the dashboard names, beside its own: a forwarded port, a proxy. As browsers write origins: in
    lower case, without the scheme's own port.

    Raises:
        InvalidParameter: one of them is no origin.
    """
    named = []
    for text in texts:
        origin = text.strip().lower().removesuffix("/")
        if not _ORIGIN.fullmatch(origin):
            raise InvalidParameter(
                f"{text[:80]!r} is no origin; write scheme, host and port, such as http://localhost:9000 "
                "or https://gpu.example.org"
            )
        named.append(origin.removesuffix(":80" if origin.startswith("http:") else ":443"))
    return tuple(named)


def origins_from_environment() -> tuple[str, ...]:
    """Those in PINSCOPE_ORIGINS, by comma.

    Raises:
        InvalidParameter: one of them is no origin.
    """
    try:
        return named_origins(filter(str.strip, os.environ.get(VARIABLE, "").split(",")))
    except InvalidParameter as error:
        raise InvalidParameter(f"{VARIABLE}: {error}") from None


WRONG_ADDRESS = "Invalid host header"
FOREIGN_PAGE = "Only the dashboard's own pages may ask for this."


class Gate:
    """Refuses foreign hosts and origins before Streamlit sees them.

    Streamlit takes pages of every port of localhost for its own, and of any other page it asks name servers and a
    public host whether it comes from this machine. So behind the gate each request carries the dashboard's first own
    address, and Streamlit has nothing to ask for.

    Args:
        app: what stands behind the gate.
        named: origins beside the dashboard's own under which its owner reaches it.
    """

    def __init__(self, app: ASGIApp, named: Sequence[str] = ()) -> None:
        self._app = app
        self._named = tuple(named)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it: 400 for a foreign host, 403 for a foreign page."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        own = own_origins(scope["server"][1])
        refusal = self._refusal(scope, (*own, *self._named))
        if refusal is not None:
            if scope["type"] == "websocket":  # 1008: policy violation (RFC 6455); the server answers 403
                await send({"type": "websocket.close", "code": 1008})
            else:
                await refusal(scope, receive, send)
            return
        plain = {b"host": own[0].removeprefix("http://").encode(), b"origin": own[0].encode()}
        headers = [(name, plain.get(name, value)) for name, value in scope["headers"]]
        await self._app({**scope, "headers": headers}, receive, send)

    def _refusal(self, scope: Scope, known: Collection[str]) -> PlainTextResponse | None:
        headers = Headers(scope=scope)
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        if len(hosts) != 1 or hosts[0].lower() not in [origin.partition("://")[2] for origin in known]:
            return PlainTextResponse(_wrong_address(hosts), status_code=400)
        is_named = len(origins) == 1 or (not origins and scope["type"] == "http")
        is_own = is_named and all(origin.lower() in known for origin in origins)
        if not is_own or _is_part_of_foreign_page(headers):
            return PlainTextResponse(FOREIGN_PAGE, status_code=403)
        return None


def _is_part_of_foreign_page(headers: Headers) -> bool:
    """A picture, script or frame that a foreign page asks for: browsers send no origin then, but say so.

    A link to the dashboard may stand anywhere: that is no part of the page, but leaves it.
    """
    foreign = headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
    link = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    return foreign and not link


def _wrong_address(hosts: Sequence[str]) -> str:
    """For a forwarded port, what its owner must name; a foreign name learns nothing."""
    origin = f"http://{hosts[0].lower()}" if hosts else ""
    if origin.removeprefix("http://").partition(":")[0] not in ALLOWED_HOSTS or not _ORIGIN.fullmatch(origin):
        return WRONG_ADDRESS
    return f"This address is not known here. Start the dashboard with --origin {origin}, or {VARIABLE}={origin}."


class StaleRequests:
    """Passes on what the page that a browser asked for last asks; not what the page before it asks.

    Until the next page is drawn, the last one stands there, can be clicked and draws its progress anew. Streamlit 1.67
    takes what a part that is drawn by itself (a fragment) asks for a return to that page: it shows the last page
    instead of the next, or an empty window.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a conversation on, without what is dropped."""
        page = ""  # as Streamlit names it; empty until a browser does

        async def receive_of_page() -> Message:
            nonlocal page
            while True:
                message = await receive()
                request = BackMsg()
                with suppress(DecodeError):  # Streamlit says so
                    request.ParseFromString(message.get("bytes") or b"")
                asked = request.rerun_script
                if request.WhichOneof("type") != "rerun_script":
                    return message
                if not asked.fragment_id:
                    page = asked.page_script_hash
                if page in ("", asked.page_script_hash):
                    return message

        await self._app(scope, receive_of_page if scope["type"] == "websocket" else receive, send)


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
"""What a page may load: its own server's, no script that stands in the page but Streamlit's, no eval.

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
_BASE = "<head><script>window.__streamlit = { BACKEND_BASE_URL: window.location.origin };</script>"
_INLINE_SCRIPT = re.compile("<script>(.*?)</script>", re.DOTALL)


@cache
def page() -> str:
    """The page of every address: Streamlit's, which is told where its server is.

    Without this, a page opened at /runs first asks for /runs/_stcore/health, in case the server lived below
    /runs, and every reload leaves two "404 (Not Found)" errors in the browser's console.
    """
    return (files("streamlit") / "static" / "index.html").read_text("utf-8").replace("<head>", _BASE, 1)


@cache
def content_policy() -> str:
    """:data:`CONTENT_POLICY` as a header, with the digests of the page's own scripts."""
    digests = (hashlib.sha256(script.encode()).digest() for script in _INLINE_SCRIPT.findall(page()))
    scripts = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return "; ".join(f"{name} {sources}" for name, sources in CONTENT_POLICY.items()).replace(
        "script-src 'self'", f"script-src 'self' {scripts}"
    )


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


def middleware(named: Sequence[str] = ()) -> tuple[Middleware, ...]:
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
    )
