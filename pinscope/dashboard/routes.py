"""The dashboard's server, with its safe settings, and what it answers itself: the page that Streamlit fills, the
figures of Now, the documentation."""

from __future__ import annotations

import errno
import hashlib
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import lru_cache
from importlib import import_module
from mimetypes import guess_type
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

import streamlit as st
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from streamlit import config

from pinscope.dashboard.middleware import ADDRESS, SETTINGS, middleware, page
from pinscope.dashboard.pages import MANUAL_ROOT, PAGES, SCRIPT
from pinscope.errors import NotPossible

if TYPE_CHECKING:
    from pinscope.dashboard.live_board import Board
    from pinscope.manual.site import Site

LIVE_ROOT = "/live/"
WINDOWS: Mapping[float, str] = {60.0: "1 minute", 300.0: "5 minutes", 900.0: "15 minutes", 3600.0: "1 hour"}
"""Seconds that a reader may look back."""
DEFAULT_WINDOW_SECONDS = 300.0
_FOLDER = Path(__file__).parent
_FILES: Mapping[str, tuple[bytes, str]] = {
    name: ((_FOLDER / name).read_bytes(), kind)
    for name, kind in (("now.js", "text/javascript"), ("now_chart.js", "text/javascript"), ("now.css", "text/css"))
}
VERSION = hashlib.sha256(b"".join(content for content, _ in _FILES.values())).hexdigest()[:12]
"""Of the files, for browsers that keep them."""
MakeSite = Callable[[], "Site"]
"""Gives the documentation. It is made when it is first asked for: that loads half of PinScope."""


def routes(site: MakeSite) -> list[BaseRoute]:
    """The paths, and what answers each.

    Args:
        site: gives the documentation.
    """
    live = [
        Route("/now.json", _changes),
        Route("/facts.json", lambda request: _json(board().facts(request.query_params.get("at", "")))),
        Route("/snapshot.json", _snapshot),
        Route("/{name}", _file),
    ]
    return [
        *(
            Route(entry.address, lambda _: HTMLResponse(page(), headers={"cache-control": "no-cache"}))
            for entry in PAGES
        ),
        Mount(LIVE_ROOT, routes=live),
        Mount(MANUAL_ROOT, routes=[Route("/{path:path}", _manual(site))]),
    ]


@lru_cache(maxsize=1)
def board() -> Board:
    """The one of this server."""
    from pinscope.dashboard.live_board import Board, watch  # noqa: PLC0415 - loaded when somebody looks

    return Board(lambda: watch().look())


@asynccontextmanager
async def pages_loaded(_: st.App) -> AsyncIterator[None]:
    """What a server does while it runs: it imports the pages, which takes half a second, while a browser is started."""
    Thread(target=_load_pages, daemon=True).start()
    yield


def _load_pages() -> None:
    """Tables are styled by a module that pandas itself loads late."""
    for name in (*(f"pinscope.dashboard.{entry.path.stem}" for entry in PAGES), "pandas.io.formats.style"):
        import_module(name)


def _changes(request: Request) -> Response:
    """What changed for a tab since it last asked."""
    query = request.query_params
    window = next((seconds for seconds in WINDOWS if f"{seconds:g}" == query.get("window")), DEFAULT_WINDOW_SECONDS)
    return _json(board().answer(window, query.get("known", ""), query.get("chosen", "")))


def _snapshot(request: Request) -> Response:
    answer = _json(board().snapshot(request.query_params.get("at", "")))
    answer.headers["content-disposition"] = 'attachment; filename="pinscope-snapshot.json"'
    return answer


def _file(request: Request) -> Response:
    if request.path_params["name"] not in _FILES:
        return _nothing()
    content, kind = _FILES[request.path_params["name"]]
    return Response(content, media_type=kind, headers={"cache-control": "max-age=31536000, immutable"})


def _json(content: bytes | None) -> Response:
    if content is None:
        return _nothing()
    return Response(content, media_type="application/json", headers={"cache-control": "no-store"})


def _nothing(what: str = "thing") -> Response:
    return PlainTextResponse(f"There is no such {what}.", status_code=404)


def _manual(site: MakeSite) -> Callable[[Request], Response]:
    """Answers with the files of the documentation; the first call renders all pages."""

    @lru_cache(maxsize=1)
    def files() -> dict[str, bytes]:
        from pinscope.manual.site import site_files  # noqa: PLC0415 - only for those who read the documentation

        return dict(site_files(site()))

    def answer(request: Request) -> Response:
        path = request.path_params["path"] or "index.html"
        if path not in files():
            return _nothing("page")
        return Response(files()[path], media_type=guess_type(path, strict=False)[0])

    return answer


def serve(port: int, site: MakeSite, named: Sequence[str] = ()) -> int:
    """Serve the dashboard on 127.0.0.1 until it is stopped (Ctrl+C or SIGTERM); the exit code.

    Args:
        port: 1 to 65535.
        site: gives the documentation to serve beside the pages.
        named: origins under which it is reached, beside its own.

    Raises:
        NotPossible: another program listens on it, or this user may not.
    """
    _check_free(port)
    _forget_variables_of_other_apps()
    config.get_config_files = _no_files
    url = f"http://{ADDRESS}:{port}"
    sys.stdout.write(f"PinScope's dashboard is at {url} (Ctrl+C stops it)\n")
    sys.stdout.flush()
    with suppress(KeyboardInterrupt):  # raised again by the server after it has put everything away
        own = {"server.port": port, "logger.hideWelcomeMessage": True}  # the line above says all that it would
        app = st.App(SCRIPT, routes=routes(site), middleware=middleware(named), lifespan=pages_loaded)
        app.run(config={**SETTINGS, **own})
    return 0


def _forget_variables_of_other_apps() -> None:
    """Streamlit's settings in the environment were made for other apps: an address, a certificate, a theme."""
    for name in [name for name in os.environ if name.startswith("STREAMLIT_")]:
        del os.environ[name]


def _no_files(file_name: str) -> list[str]:  # noqa: ARG001 - the signature is Streamlit's
    """In place of Streamlit's function: it reads no files of settings from the user's home or the working folder."""
    return []


def _check_free(port: int) -> None:
    """Find out now, in one line, what the server would find out with a log of its own."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does: closed connections linger
        try:
            probe.bind((ADDRESS, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise NotPossible(
                    f"port {port} is in use; stop the program that holds it, or set another: PINSCOPE_PORT={port + 1}"
                ) from None
            raise NotPossible(f"cannot listen on port {port}: {error.strerror}") from None
