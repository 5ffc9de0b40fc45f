"""Figures that pages of docs/ quote from recordings, and the recordings on which each rule fires."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pinscope.errors import UnknownName
from pinscope.records.run import Reading, Table
from pinscope.units import format_value


def fires_on(readings: Mapping[str, Reading]) -> dict[str, list[str]]:
    """Rule → recordings on which it fires, of readings by name of their recording."""
    pairs = {(finding.rule, name) for name, reading in readings.items() for finding in reading.findings}
    return {rule: sorted(name for other, name in pairs if other == rule) for rule, _ in sorted(pairs)}


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

    def renew(match: re.Match[str]) -> str:
        _, target, recording, name = match.groups()
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
    figures = _cells(reading, title, cells) if cells else _quantities(reading, title)
    if len(figures) != 1:
        raise UnknownName(f"{len(figures)} figures are called {name!r}; one is needed")
    return figures.pop()


def _quantities(reading: Reading, name: str) -> set[str]:
    """Those of the headline; only if it has none of that name, those of all findings."""
    evidence = [quantity for finding in reading.findings for quantity in finding.evidence]
    for named in ([quantity for quantity in part if quantity.name == name] for part in (reading.headline, evidence)):
        if named:
            return {_text(quantity.value, quantity.unit) for quantity in named}
    return set()


def _cells(reading: Reading, title: str, cells: list[str]) -> set[str]:
    *labels, column = cells
    tables = [table for table in reading.tables if table.title == title and column in table.columns]
    return {_text(value, unit) for table in tables for value, unit in _column(table, labels, column)}


def _column(table: Table, labels: list[str], column: str) -> list[tuple[float | int | str | bool | None, str]]:
    """Cells of a column in the rows that begin with these labels, with their unit."""
    place = table.columns.index(column)
    values = []
    for row in table.rows:
        first = [format_value(value, unit) for value, unit in zip(row, table.units, strict=True)][: len(labels)]
        if first == labels:
            values.append((row[place], table.units[place]))
    return values


def _text(value: float | int | str | bool | None, unit: str) -> str:
    return format_value(value, unit).replace(" ×", " times")
