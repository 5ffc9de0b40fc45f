"""Under which addresses a browser may use the dashboard: its own two, and those that its owner names.

An origin is scheme, host and port of a page (RFC 6454). A browser sends it with each WebSocket and each upload, and no
page can forge it. To check it keeps foreign pages out, by whichever way they reach this machine.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pinscope.dashboard.settings import ALLOWED_HOSTS
from pinscope.errors import InvalidParameter

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
    found = _split(address)
    if default is None or found is None:
        return None
    host, port = found
    return Origin(scheme.lower(), host, port or default)


def is_address_of(address: str, origins: Iterable[Origin]) -> bool:
    """Whether a Host header names one of the origins. It has no scheme, so without a port it means the scheme's own."""
    found = _split(address)
    if found is None:
        return False
    host, port = found
    return any((one.host, one.port) == (host, port or DEFAULT_PORTS[one.scheme]) for one in origins)


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
    found = _ADDRESS.fullmatch(address.lower()) if address.isascii() else None
    if found is None:
        return None
    port = int(found["port"]) if found["port"] else None
    return None if port is not None and port > 65535 else (found["host"], port)
