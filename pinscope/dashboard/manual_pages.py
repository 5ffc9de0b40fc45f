"""The documentation, served by the dashboard itself, and the links to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from mimetypes import guess_type
from typing import TYPE_CHECKING

import streamlit as st
from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

if TYPE_CHECKING:
    from pinscope.manual.site import Site

ROOT = "/manual/"
MakeSite = Callable[[], "Site"]
"""Gives the documentation. It is made when it is first asked for: that loads half of PinScope."""


class ManualPages:
    """Answers what is asked below :data:`ROOT`, and passes everything else on."""

    def __init__(self, app: ASGIApp, site: MakeSite) -> None:
        self._app = app
        self._files = lru_cache(maxsize=1)(lambda: _files(site()))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer or pass on."""
        if scope["type"] != "http" or not scope["path"].startswith(ROOT):
            await self._app(scope, receive, send)
            return
        path = scope["path"].removeprefix(ROOT) or "index.html"
        content = (await run_in_threadpool(self._files)).get(path)  # the first call renders all pages
        if content is None:
            answer: Response = PlainTextResponse("There is no such page.", status_code=404)
        else:
            answer = Response(content, media_type=guess_type(path, strict=False)[0])
        await answer(scope, receive, send)


def _files(site: Site) -> dict[str, bytes]:
    from pinscope.manual.site import site_files  # noqa: PLC0415 - only for those who read the documentation

    return dict(site_files(site))


def help_links(pages: Mapping[str, str]) -> None:
    """Links to pages of the documentation, each in a tab of its own: label → name of the page."""
    links = (f"[{label}]({ROOT}{page}.html)" for label, page in pages.items())
    st.caption(f":material/help: {' · '.join(links)}")
