"""What the first text of a page is made of, and how it is written."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pinscope.dashboard.pages import HOME, PAGES, RUNS, PageEntry
from pinscope.text import one_line

Kind = Literal["opening", "beside", "note", "heading", "card"]
HEADING = '[data-testid="stHeading"]'


@dataclass(frozen=True)
class Line:
    """Text, and where it leads.

    Attributes:
        text: as it is; code that writes it into a page escapes it.
        tag: what it is in HTML.
        link: an address of this server.
    """

    text: str
    tag: Literal["h1", "h2", "h3", "p", "small", "strong"] = "p"
    link: str = ""


@dataclass(frozen=True)
class Block:
    """Lines that stand together until Streamlit has drawn theirs.

    Attributes:
        kind: how it looks.
        until: a CSS selector of what takes its place.
        lines: from the top.
    """

    kind: Kind
    until: str
    lines: Sequence[Line]


def page_at(path: str) -> PageEntry | None:
    """The page of that address."""
    return next((page for page in PAGES if page.address == path), None)


def opening(page: PageEntry) -> list[Block]:
    """The page's heading and the sentences below it; nothing for a page that begins with its name alone."""
    if not page.opening:
        return []
    kind: Kind = "beside" if page is HOME else "opening"  # Home has its first step beside it
    return [Block(kind, HEADING, (Line(page.heading, "h1"), Line(page.opening)))]


def has_words(page: PageEntry, query: Mapping[str, str]) -> bool:
    """Whether there is more to say at that address than the page's name."""
    return bool(page.opening) or (page is RUNS and "run" in query)


def written(blocks: Sequence[Block]) -> str:
    """The blocks as HTML; no text in them is taken for markup."""
    return "".join(
        f'<div class="{block.kind}" data-until="{html.escape(block.until)}">{"".join(map(_written, block.lines))}</div>'
        for block in blocks
    )


def _written(line: Line) -> str:
    text = html.escape(one_line(line.text))
    if line.link:
        text = f'<a href="{html.escape(line.link)}">{text}</a>'
    return f"<{line.tag}>{text}</{line.tag}>" if text else ""
