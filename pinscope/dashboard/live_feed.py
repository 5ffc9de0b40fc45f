"""Answers the script of the page Now: its files, and what changed since it last asked."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from pinscope.errors import InvalidParameter

if TYPE_CHECKING:
    from pinscope.dashboard.live_board import Board

ROOT = "/live/"
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
    """Answers what is asked below :data:`ROOT`, and passes everything else on."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer or pass on."""
        if scope["type"] != "http" or not scope["path"].startswith(ROOT):
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        answer = await run_in_threadpool(self._answer, request.method, scope["path"].removeprefix(ROOT), request)
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
