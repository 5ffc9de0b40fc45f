"""What every request passes before it reaches Streamlit."""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pinscope.dashboard.settings import ALLOWED_HOSTS

SAFE_HEADERS = {
    # No other page may show the dashboard inside itself, where its buttons could be hidden under others.
    "content-security-policy": "frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
_BASE = b"<head><script>window.__streamlit = { BACKEND_BASE_URL: window.location.origin };</script>"


class SafeHeaders:
    """Adds :data:`SAFE_HEADERS` to every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and the answer back."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SAFE_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_with_headers)


class KnownBase:
    """Tells Streamlit's page where its server is.

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
            body = body.replace(b"<head>", _BASE, 1)
            headers = MutableHeaders(scope=held)
            headers["content-length"] = str(len(body))
            del headers["etag"], headers["last-modified"]  # they tell of Streamlit's page, not of this one
            await send(held)
            await send({"type": "http.response.body", "body": body})

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


MIDDLEWARE = (
    # Streamlit's own check of the host covers its WebSocket only; this one covers every request.
    Middleware(TrustedHostMiddleware, allowed_hosts=list(ALLOWED_HOSTS), www_redirect=False),
    Middleware(SafeHeaders),
    # Streamlit sends its JavaScript (megabytes) uncompressed, which is slow through an SSH tunnel to a GPU host.
    Middleware(GZipMiddleware, minimum_size=1000, compresslevel=4),
    # Inside of compression, which would hide the page from it.
    Middleware(KnownBase),
)
"""From the outside in."""
