"""How the command line writes: facts to stdout, progress and errors to stderr, colour only in a terminal."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TextIO

from pinscope.text import error_line, escaped, visible

if TYPE_CHECKING:
    from rich.console import Console

    from pinscope.records.finding import Severity


def complain(message: str) -> None:
    """One line on stderr that begins with ``pinscope:``; lost where stderr takes none, for nothing ends by that."""
    with suppress(OSError):  # a full disk, a terminal or pipe that is gone
        sys.stderr.write(f"pinscope: {error_line(message)}\n")
        sys.stderr.flush()


def print_json(document: Any, *, on_one_line: bool = False) -> None:
    """A JSON document of a command that was asked for ``--json``.

    Args:
        document: what to print.
        on_one_line: one of many, each on a line of its own.
    """
    portable = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
    indent = None if on_one_line else 2
    text = json.dumps(document, indent=indent, ensure_ascii=portable, allow_nan=False)
    # JSON itself escapes control characters below U+0020 only. Its own line breaks are no part of any value.
    sys.stdout.write(escaped(text) + "\n")


def print_long_json(document: Mapping[str, Any], name: str, rows: Iterable[Any]) -> None:
    """The same for a document whose last member is a list that may be longer than memory holds."""
    portable = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
    encoder = json.JSONEncoder(indent=2, ensure_ascii=portable, allow_nan=False)

    def write(text: str) -> None:
        sys.stdout.write(escaped(text))

    write(f"{encoder.encode(document)[:-2]},\n  {json.dumps(name)}: [")
    place = -1
    for place, row in enumerate(rows):
        write(f"{',' if place else ''}\n" + textwrap.indent(encoder.encode(row), "    "))
    write("\n  ]\n}\n" if place >= 0 else "]\n}\n")


def print_line(text: str = "") -> None:
    """A plain line of facts."""
    sys.stdout.write(visible(text) + "\n")


def print_prose(text: str, indent: str = "", hanging: str = "", style: str = "") -> None:
    """A sentence or several: wrapped at words in a terminal, one line elsewhere.

    Args:
        text: what to say; its own line breaks stay.
        indent: before its first line.
        hanging: before its other lines.
        style: as :func:`styled` has it.
    """
    room = terminal_columns()
    for line in visible(text).split("\n"):
        if room is None:
            sys.stdout.write(f"{indent}{line}\n")
            continue
        wrapped = textwrap.fill(
            line,
            max(room, 20),
            initial_indent=indent,
            subsequent_indent=hanging,
            break_long_words=False,
            break_on_hyphens=False,
        )
        sys.stdout.write("\n".join(styled(part, style) for part in wrapped.split("\n")) + "\n")


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], title: str = "", numbers: Sequence[int] = ()
) -> None:
    """A table of ready text, laid out for the terminal; see :func:`pinscope.cli.table.lay_out`.

    Args:
        columns: headings; a table whose headings are all empty shows none.
        rows: one text a column.
        title: a line above it.
        numbers: columns that are aligned to the right.
    """
    from pinscope.cli.table import lay_out

    if title:
        print_prose(title)
    clean = [[visible(cell) for cell in row] for row in rows]
    table = lay_out([visible(column) for column in columns], clean, numbers, terminal_columns())
    lines = [*(styled(line, "bold") for line in table.headings), *table.body]
    sys.stdout.write("\n".join(lines) + "\n\n")


def terminal_columns() -> int | None:
    """How wide the terminal is that stdout goes to; None where it goes elsewhere, and lines may be of any length."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def is_steerable() -> bool:
    """True if stdout is a terminal that knows bold print and a cursor."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


_CODES = {"bold": "1", "dim": "2", "reverse": "7", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_PLAIN = ("bold", "dim", "reverse")
"""What is no colour."""


SEVERITY_STYLES: Mapping[Severity, str] = {
    "critical": "bold red",
    "warning": "bold yellow",
    "note": "bold",
    "good": "bold green",
}
"""A word or a sign always stands beside the colour."""


def styled(text: str, style: str) -> str:
    """The text in a style of several words such as ``bold red``, where stdout shows it.

    NO_COLOR (no-color.org) leaves bold print.
    """
    words = style.split() if text and is_steerable() else ()
    codes = [_CODES[word] for word in words if word in _PLAIN or not os.environ.get("NO_COLOR")]
    return f"\x1b[{';'.join(codes)}m{text}\x1b[0m" if codes else text


def console(stream: TextIO) -> Console:
    """A rich console that writes colour to terminals only, and never reads text as markup."""
    from rich.console import Console

    return Console(file=stream, force_terminal=stream.isatty(), markup=False, emoji=False, highlight=False)
