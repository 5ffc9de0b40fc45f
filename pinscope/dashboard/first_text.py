"""The first text of a page, put into Streamlit's empty one: it can be read while a browser still loads Streamlit.

A browser needs more than a second to load Streamlit's programs, to connect, and to receive what the page shows. The
text is the page's own (see first_words.py). It gives way to what Streamlit draws (see first_text.js).
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from urllib.parse import parse_qsl

from starlette.types import Scope

from pinscope.dashboard.first_blocks import Block, has_words, opening, page_at, written
from pinscope.dashboard.pages import PageEntry
from pinscope.dashboard.settings import SETTINGS

PATIENCE_SECONDS = 3.0
"""A page waits so long for what a new server must find out first; then it has its opening only."""
_FOLDER = Path(__file__).parent
_PLACE = b'<div id="root"></div>'
_HEAD_END = b"</head>"
_FONT = re.compile(rb'href="(\./static/media/SourceSans[^"]+\.woff2)"')
_SHEET = re.compile(rb'<link rel="stylesheet"[^>]*>')
_LOGGER = logging.getLogger(__name__)


def with_script(page: bytes) -> bytes:
    """Streamlit's page with what lets the text give way; a page of another shape stays as it is."""
    if page.count(_PLACE) != 1 or page.count(_HEAD_END) != 1:
        return page
    font = _FONT.search(page)
    style = _style(font[1] if font else b"")
    sheets = b"".join(_SHEET.findall(page))  # a browser shows nothing that follows them before it has loaded them
    page = _SHEET.sub(b"", page).replace(_PLACE, _PLACE + sheets)
    return page.replace(_HEAD_END, b"<script>%s</script><style>%s</style></head>" % (_script(), style))


async def pieces(page: bytes, scope: Scope) -> AsyncIterator[bytes]:
    """The page of :func:`with_script` with the text of the address that was asked for, each as soon as it is known.

    Browsers show a page that is not complete, and load its scripts meanwhile.
    """
    entry, query = page_at(scope["path"]), dict(parse_qsl(scope["query_string"].decode("latin-1")))
    if entry is None or b"#pinscope-first" not in page or not has_words(entry, query):
        yield page
        return
    before, after = page.split(_PLACE)
    yield before + b'<main id="pinscope-first">' + written(opening(entry)).encode()
    yield written(await _rest(entry, query)).encode() + b"</main>" + _PLACE + after


async def _rest(page: PageEntry, query: Mapping[str, str]) -> Sequence[Block]:
    """What follows its opening; nothing if that takes too long."""
    try:
        return await asyncio.wait_for(asyncio.to_thread(_found, page, query), PATIENCE_SECONDS)
    except TimeoutError:
        return ()
    except Exception:  # whatever it is, the page itself can still be had
        _LOGGER.exception("the first text of the page %s could not be made", page.title)
        return ()


def _found(page: PageEntry, query: Mapping[str, str]) -> Sequence[Block]:
    from pinscope.dashboard.first_words import first_words  # noqa: PLC0415 - not before the server answers

    return first_words(page, query)


@lru_cache(maxsize=1)
def _script() -> bytes:
    return (_FOLDER / "first_text.js").read_bytes()


@lru_cache(maxsize=4)
def _style(font: bytes) -> bytes:
    """In the colours of the theme, with Streamlit's own letters where its page names them."""
    sheet = (_FOLDER / "first_text.css").read_text("utf-8")
    for scheme in ("light", "dark"):
        for word, setting in (("text", "textColor"), ("back", "backgroundColor"), ("line", "borderColor")):
            sheet = sheet.replace(f"{word}-{scheme}".upper(), str(SETTINGS[f"theme.{scheme}.{setting}"]))
    face = b'@font-face{font-family:"Source Sans";font-weight:200 900;src:url(%s)}' % font if font else b""
    return face + sheet.encode()
