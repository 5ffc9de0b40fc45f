"""Tables of ready text for a terminal: nothing is cut off, no figure is broken in its middle."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import zip_longest

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
    """Of each row its lines."""

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
            cells = [_wrapped(row[place], widths[place]) for place in line]
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


def _wrapped(text: str, width: int) -> list[str]:
    """The text in lines of at most ``width`` columns, broken between words where that is possible."""
    lines = [""]
    for word in text.split():
        joined = f"{lines[-1]} {word}" if lines[-1] else word
        if _width(joined) <= width:
            lines[-1] = joined
            continue
        if lines[-1]:
            lines.append("")
        for sign in word:
            if lines[-1] and _width(lines[-1] + sign) > width:
                lines.append("")
            lines[-1] += sign
    return lines


def _width(text: str) -> int:
    """Columns that a terminal gives the text: some letters take two."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
