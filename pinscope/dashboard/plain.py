"""Text from outside (host names, run ids, errors, imported notes) for widgets that read Markdown."""

from __future__ import annotations

import re

from pinscope.text import one_line

_PUNCTUATION = re.compile(r"([!-/:-@\[-`{-~])")
_READ_LATER = re.compile(r"(:(?=[\w+/-]+:)|:(?=//)|\bwww(?=\.)|@)")
_QUANTITY = re.compile(r"(?<=\d) (?=(?:[KMGTP]iB|[KMGT]?B|ns|µs|ms|s|\\%|×)(?!\w))|(?<=±) (?=\d)")
"""In escaped text the space between a number and its unit, where a line must not end."""
_WORD_JOINER = "\N{WORD JOINER}"


def sentence(text: str) -> str:
    """``text`` as a sentence of its own: a capital first, a full stop last."""
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?", ":")) else ".")


def plain(text: str) -> str:
    """``text`` on one line, so that Markdown shows it as it stands: no HTML, link, image, formula, icon or colour.

    Every sign of ASCII punctuation is escaped, as CommonMark allows (section 2.4). Icons (``:name:``) and bare
    addresses are looked for after the escapes are resolved; an invisible word joiner keeps those from being found.
    """
    return _PUNCTUATION.sub(r"\\\1", _READ_LATER.sub(rf"\1{_WORD_JOINER}", one_line(text)))


def prose(text: str) -> str:
    """As :func:`plain`, for sentences: no line ends between a number and its unit."""
    return _QUANTITY.sub("\N{NO-BREAK SPACE}", plain(text))
