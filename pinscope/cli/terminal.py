"""How the command line writes: facts to stdout, progress and errors to stderr, colour only in a terminal."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TextIO

if TYPE_CHECKING:
    from rich.console import Console

PIPED_WIDTH = 160
"""Columns of a table that no terminal shows: wide enough to keep its rows on one line."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""All control characters but tab and line feed: text from outside must not steer a terminal."""


def one_line(text: str) -> str:
    """``text`` without line breaks and control characters."""
    return " ".join(_CONTROL.sub("", text).split())


def complain(message: str) -> None:
    """One line on stderr that begins with ``pinscope:``."""
    sys.stderr.write(f"pinscope: {message}\n")
    sys.stderr.flush()


def print_json(document: Any) -> None:
    """The one JSON document of a command that was asked for ``--json``."""
    portable = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=portable, allow_nan=False) + "\n")


def print_line(text: str = "") -> None:
    """A plain line of facts."""
    sys.stdout.write(_CONTROL.sub("", text) + "\n")


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], title: str = "", numbers: Sequence[int] = ()
) -> None:
    """A table of ready text; its first column is never broken.

    Args:
        columns: headings; a table whose headings are all empty shows none.
        rows: one text a column.
        title: a line above it.
        numbers: columns that are aligned to the right.
    """
    from rich.table import Table
    from rich.text import Text

    if title:
        print_line(title)
    table = Table(box=None, show_header=any(columns), pad_edge=False, padding=(0, 2, 0, 0))
    for place, column in enumerate(columns):
        justify: Literal["left", "right"] = "right" if place in numbers else "left"
        table.add_column(column, justify=justify, overflow="fold", no_wrap=place == 0)
    for row in rows:
        table.add_row(*(Text(_CONTROL.sub("", cell)) for cell in row))
    out = console(sys.stdout)
    with out.capture() as drawn:
        out.print(table)
    lines = [line.rstrip() for line in drawn.get().splitlines()]
    sys.stdout.write("\n".join(lines).strip("\n") + "\n\n")


def console(stream: TextIO) -> Console:
    """A rich console that writes colour to terminals only, and never reads text as markup."""
    from rich.console import Console

    terminal = stream.isatty()
    return Console(
        file=stream, force_terminal=terminal, width=None if terminal else PIPED_WIDTH,
        markup=False, emoji=False, highlight=False,
    )  # fmt: skip
