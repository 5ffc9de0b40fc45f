"""Figures that a page quotes from recorded runs, each a link whose title says where the figure comes from.

``[55.0 GB/s](experiments/bandwidth.md "bandwidth-h200: Pinned h2d, 1 GiB")`` is a figure of the headline or of a
finding's evidence, by its name. ``"bandwidth-h200: Every combination > pinned > h2d > engine > 1 GiB > rate"`` is a
cell: the table's title, the first cells of its row and the heading of its column. The text between the brackets is
written by ``scripts/write-verdicts``, so a figure stands in the recording only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from pinscope.errors import UnknownName
from pinscope.records.finding import Reading, Table
from pinscope.units import format_value

QUOTED = re.compile(r'\[([^][]*)\]\(([^()\s]+) "([\w-]+): ([^"]+)"\)')
"""Text, target, recording and figure."""
_INTO = " > "
"""From a table into its row, and to its column; a bar would end a cell of the page's own table."""


def renewed(page: str, readings: Mapping[str, Reading]) -> str:
    """The page with every quoted figure as this version reads it.

    Args:
        page: Markdown.
        readings: of the recordings, by :func:`~pinscope.store.recordings.recording_name`.

    Raises:
        UnknownName: no such recording or figure, or several different ones of that name.
    """

    def renew(found: re.Match[str]) -> str:
        _, target, recording, name = found.groups()
        if recording not in readings:
            raise UnknownName(f"no recording {recording}")
        try:
            return f'[{figure(readings[recording], name)}]({target} "{recording}: {name}")'
        except UnknownName as error:
            raise UnknownName(f"{recording}: {error}") from None

    return QUOTED.sub(renew, page)


def figure(reading: Reading, name: str) -> str:
    """A figure as a page shows it, with its unit; a ratio as ``6.50 times``. Errors as of :func:`renewed`."""
    title, *cells = name.split(_INTO)
    found = _cells(reading, title, cells) if cells else _quantities(reading, title)
    if len(found) != 1:
        raise UnknownName(f"{len(found)} figures are called {name!r}; one is needed")
    return found.pop()


def _quantities(reading: Reading, name: str) -> set[str]:
    """Those of the headline; only if it has none of that name, those of all findings."""
    evidence = [each for finding in reading.findings for each in finding.evidence]
    for named in ([each for each in part if each.name == name] for part in (reading.headline, evidence)):
        if named:
            return {_text(each.value, each.unit) for each in named}
    return set()


def _cells(reading: Reading, title: str, cells: list[str]) -> set[str]:
    *labels, column = cells
    tables = [table for table in reading.tables if table.title == title and column in table.columns]
    return {_text(value, unit) for table in tables for value, unit in _column(table, labels, column)}


def _column(table: Table, labels: list[str], column: str) -> list[tuple[float | int | str | bool | None, str]]:
    """Cells of a column in the rows that begin with these labels, with their unit."""
    place = table.columns.index(column)
    found = []
    for row in table.rows:
        first = [format_value(value, unit) for value, unit in zip(row, table.units, strict=True)][: len(labels)]
        if first == labels:
            found.append((row[place], table.units[place]))
    return found


def _text(value: float | int | str | bool | None, unit: str) -> str:
    return format_value(value, unit).replace(" ×", " times")
