"""What every request passes before it reaches Streamlit."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ClientState_pb2 import ClientState
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

from pinscope.dashboard.pages import MANUAL_ROOT
from pinscope.errors import InvalidParameter

if TYPE_CHECKING:
    pass

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
DEFAULT_PORTS = {"http": 80, "https": 443}
_ADDRESS = re.compile(
    r"(?P<host>[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?|\[[0-9a-f:.]{2,45}\])(:(?P<port>[1-9][0-9]{0,4}))?"
)
_SHOWN = 80
"""Characters of a refused value that its message repeats."""


@dataclass(frozen=True)
class Origin:
    """Scheme, host and port; the host in lower case, IPv6 in brackets."""

    scheme: str
    host: str
    port: int

    @property
    def address(self) -> str:
        """Host and port as a browser sends them: without the scheme's own port."""
        return self.host if self.port == DEFAULT_PORTS[self.scheme] else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.address}"


def own_origins(port: int) -> tuple[Origin, ...]:
    """The dashboard's own, where it listens on that port."""
    return tuple(Origin("http", host, port) for host in ALLOWED_HOSTS)


def parse_origin(text: str) -> Origin | None:
    """The origin that a header names; ``None`` if it is anything else, such as ``null`` or an address with a path."""
    scheme, _, address = text.partition("://")
    default = DEFAULT_PORTS.get(scheme.lower())
    host_and_port = _split(address)
    if default is None or host_and_port is None:
        return None
    host, port = host_and_port
    return Origin(scheme.lower(), host, port or default)


def is_address_of(address: str, origins: Iterable[Origin]) -> bool:
    """Whether a Host header names one of the origins. It has no scheme, so without a port it means the scheme's own."""
    host_and_port = _split(address)
    if host_and_port is None:
        return False
    host, port = host_and_port
    return any((origin.host, origin.port) == (host, port or DEFAULT_PORTS[origin.scheme]) for origin in origins)


def named_origins(texts: Sequence[str]) -> tuple[Origin, ...]:
    """What the owner of the dashboard names, beside its own: a forwarded port, a proxy.

    Raises:
        InvalidParameter: one of them is no origin.
    """
    named = []
    for text in texts:
        origin = parse_origin(text.strip().removesuffix("/"))
        if origin is None:
            raise InvalidParameter(
                f"{text[:_SHOWN]!r} is no origin; write scheme, host and port, such as http://localhost:9000 "
                "or https://gpu.example.org"
            )
        named.append(origin)
    return tuple(named)


def origins_from_environment() -> tuple[Origin, ...]:
    """Those in PINSCOPE_ORIGINS, by comma.

    Raises:
        InvalidParameter: one of them is no origin.
    """
    texts = os.environ.get(VARIABLE, "").split(",")
    try:
        return named_origins([text for text in texts if text.strip()])
    except InvalidParameter as error:
        raise InvalidParameter(f"{VARIABLE}: {error}") from None


def _split(address: str) -> tuple[str, int | None] | None:
    """Host, and port if there is one; ``None`` if it is no address."""
    match = _ADDRESS.fullmatch(address.lower()) if address.isascii() else None
    if match is None:
        return None
    port = int(match["port"]) if match["port"] else None
    return None if port is not None and port > 65535 else (match["host"], port)


POLICY_VIOLATION = 1008
"""WebSocket's code (RFC 6455)."""
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

    def __init__(self, app: ASGIApp, named: Sequence[Origin] = ()) -> None:
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
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": POLICY_VIOLATION})  # the server answers 403
            else:
                await refusal(scope, receive, send)
            return
        plain = {b"host": own[0].address.encode(), b"origin": str(own[0]).encode()}
        headers = [(name, plain.get(name, value)) for name, value in scope["headers"]]
        await self._app({**scope, "headers": headers}, receive, send)

    def _refusal(self, scope: Scope, known: Sequence[Origin]) -> PlainTextResponse | None:
        headers = Headers(scope=scope)
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        if len(hosts) != 1 or not is_address_of(hosts[0], known):
            return PlainTextResponse(_wrong_address(hosts), status_code=400)
        if scope["type"] == "websocket" and not origins:
            return PlainTextResponse(FOREIGN_PAGE, status_code=403)
        if len(origins) > 1 or any(parse_origin(origin) not in known for origin in origins):
            return PlainTextResponse(FOREIGN_PAGE, status_code=403)
        if _is_part_of_foreign_page(headers):
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
    origin = parse_origin(f"http://{hosts[0]}") if hosts else None
    if origin is None or origin.host not in ALLOWED_HOSTS:
        return WRONG_ADDRESS
    return f"This address is not known here. Start the dashboard with --origin {origin}, or {VARIABLE}={origin}."


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
