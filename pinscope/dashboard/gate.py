"""Who is let in: a request under the dashboard's own address, from its own pages or from no page."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

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
