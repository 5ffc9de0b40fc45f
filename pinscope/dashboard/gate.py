"""Who is let in: a request under the dashboard's own address, from its own pages or from no page."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from pinscope.dashboard.origins import VARIABLE, Origin, is_address_of, own_origins, parse_origin
from pinscope.dashboard.settings import ALLOWED_HOSTS

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
