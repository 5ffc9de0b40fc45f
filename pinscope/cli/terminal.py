"""How the command line writes: facts to stdout, progress and errors to stderr, colour only in a terminal."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import textwrap
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import zip_longest
from types import FrameType
from typing import TYPE_CHECKING, Any, Self, TextIO

from pinscope.text import error_line, escaped, visible

if TYPE_CHECKING:
    from rich.console import Console

    from pinscope.records.run import Severity

GAP = "  "
INDENT = "    "
"""Before the second and further lines of a row that does not fit into one."""
LONG_WORD = 24
"""A longer word, such as a commit or a path, may be broken; a run's id is shorter."""


@dataclass(frozen=True)
class TableLines:
    """A table as lines: those of its headings, and those below."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """Each row as its lines."""

    @property
    def body(self) -> tuple[str, ...]:
        """The lines of all rows."""
        return tuple(line for row in self.rows for line in row)


def lay_out(
    columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: Collection[int] = (), room: int | None = None
) -> TableLines:
    """Lay a table out in a given width.

    Columns are made narrower by wrapping text at words; figures stay whole. A row that does not fit even so goes on
    in an indented line, as its heading does.

    Args:
        columns: headings; a table whose headings are all empty has none.
        rows: one text a column.
        numbers: columns that are aligned to the right, and whose cells are never wrapped.
        room: columns of the terminal; without it every row is one line.
    """
    rows = [[" ".join(cell.split()) for cell in row] for row in rows]
    wishes = [
        _wish(column, [row[place] for row in rows], whole=place in numbers) for place, column in enumerate(columns)
    ]
    lines = [list(range(len(columns)))] if room is None else _split(wishes, room)
    widths = dict[int, int]()
    for number, line in enumerate(lines):
        space = None if room is None else room - (len(INDENT) if number else 0) - len(GAP) * (len(line) - 1)
        widths |= zip(line, _fit([wishes[place] for place in line], space), strict=True)
    draw = _drawing(lines, widths, numbers)
    headings = draw(columns, True) if any(columns) else []
    return TableLines(tuple(headings), tuple(tuple(draw(row, False)) for row in rows))


@dataclass(frozen=True)
class _Wish:
    """How wide a column would be: with all on one line, with its heading wrapped, with all wrapped."""

    natural: int
    cells: int
    least: int


def _wish(heading: str, cells: Sequence[str], whole: bool) -> _Wish:
    long = max(map(_width, cells), default=0)
    heading_words = max((min(_width(word), LONG_WORD) for word in heading.split()), default=0)
    words = max((min(_width(word), LONG_WORD) for cell in cells for word in cell.split()), default=0)
    return _Wish(max(_width(heading), long), max(heading_words, long), max(heading_words, long if whole else words))


def _split(wishes: Sequence[_Wish], room: int) -> list[list[int]]:
    """Which columns stand in which line of a row: as many in each as fit."""
    lines: list[list[int]] = [[]]
    taken = 0
    for place, wish in enumerate(wishes):
        needed = wish.least + (len(GAP) if lines[-1] else 0)
        if lines[-1] and taken + needed > room:
            lines.append([])
            taken, needed = len(INDENT), wish.least
        lines[-1].append(place)
        taken += needed
    return lines


def _fit(wishes: Sequence[_Wish], space: int | None) -> list[int]:
    """Widths that fit into the space where they can: headings give way first, and of them the widest."""
    widths = [wish.natural for wish in wishes]
    for floors in ([wish.cells for wish in wishes], [wish.least for wish in wishes]):
        while space is not None and sum(widths) > space:
            spare = [place for place, width in enumerate(widths) if width > floors[place]]
            if not spare:
                break
            widths[max(spare, key=widths.__getitem__)] -= 1
    return widths


def _drawing(
    lines: Sequence[Sequence[int]], widths: dict[int, int], numbers: Collection[int]
) -> Callable[[Sequence[str], bool], list[str]]:
    def draw(row: Sequence[str], at_bottom: bool) -> list[str]:
        drawn = []
        for number, line in enumerate(lines):
            cells = [textwrap.wrap(row[place], widths[place], break_on_hyphens=False) or [""] for place in line]
            if at_bottom:
                height = max(map(len, cells))
                cells = [[""] * (height - len(cell)) + cell for cell in cells]
            for parts in zip_longest(*cells, fillvalue=""):
                padded = (
                    _padded(part, widths[place], place in numbers) for place, part in zip(line, parts, strict=True)
                )
                drawn.append(((INDENT if number else "") + GAP.join(padded)).rstrip())
        return drawn

    return draw


def _padded(text: str, width: int, right: bool) -> str:
    space = " " * (width - _width(text))
    return space + text if right else text + space


def _width(text: str) -> int:
    """Columns that a terminal gives the text: some letters take two."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


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
    """Print a JSON document whose last member is a list that may be longer than memory holds."""
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


def print_answer(document: Any, text: str, as_json: bool) -> None:
    """What a command did, as JSON or as a line."""
    if as_json:
        print_json(document)
    else:
        print_line(text)


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
    """A table of ready text, laid out for the terminal; see :func:`pinscope.cli.terminal.lay_out`.

    Args:
        columns: headings; a table whose headings are all empty shows none.
        rows: one text a column.
        title: a line above it.
        numbers: columns that are aligned to the right.
    """

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


LOOK_SECONDS = 0.2
"""How soon Ctrl-C, the end of a run, a closed pipe or a resized window is noticed."""


class Stop:
    """While it is entered, SIGINT, SIGQUIT and SIGTERM only set :attr:`asked`: a run is never torn in the middle, and
    no probe stays in the kernel.

    Set also where the signal was ignored before, as it is for a shell's background jobs. SIGHUP, which comes when the
    terminal is closed, is such a wish as well; not where it is ignored, as nohup has it.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        closing = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, *((signal.SIGHUP,) if closing else ())):
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def wait(self, seconds: float) -> None:
        """So long, or until somebody asks to stop."""
        end = time.monotonic() + seconds
        while not self.asked and (left := end - time.monotonic()) > 0:
            time.sleep(min(LOOK_SECONDS, left))

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self.asked = True
