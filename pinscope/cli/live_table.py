"""The holders of a snapshot as a table for the terminal: which columns, in which order, which of them fit."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pinscope.cli.sparkline import sparkline
from pinscope.cli.table import TableLines, lay_out
from pinscope.live.trend import Curve, Identity
from pinscope.records.figure import Figure
from pinscope.records.snapshot import Holder
from pinscope.report.holder_table import COLUMNS, ON_GPUS, HolderRow, holder_rows
from pinscope.text import one_line

GROWS = "▲"
TREND = "trend"
UP, DOWN = "↑", "↓"
"""After the heading of the column by which the table is sorted: small amounts first, large amounts first."""
COMMAND_CHARACTERS = 48
"""Of a command line in the table; the JSON has all of it."""
_HEADINGS: Mapping[str, str] = {name: figure.short for name, figure in COLUMNS.items() if figure.short}
_COLUMNS: Mapping[str, str] = {heading: name for name, heading in _HEADINGS.items()}
_TEXTS = ("user", "GPUs", TREND, "program")
"""Columns that are no numbers."""


@dataclass(frozen=True)
class HolderTable:
    """The rows that are shown, in their order.

    Attributes:
        holders: all that may be shown, most bytes first.
        growing: pids of those that take more and more.
        trends: of each the bytes that it held lately.
        probe: the probe runs.
        narrow: only what matters most has room.
        column: heading of the column by which it is sorted, if it has that one.
        turned: the other way round: text from its end, amounts with the smallest first.
    """

    holders: Sequence[Holder]
    growing: Collection[int]
    trends: Mapping[Identity, Curve]
    probe: bool
    narrow: bool
    column: str = ""
    turned: bool = False

    @cached_property
    def columns(self) -> list[str]:
        """Headings of those that say something of somebody; the least important ones only where there is room."""
        in_table = [
            figure
            for figure in COLUMNS.values()
            if figure.short and (self.probe or not figure.probed) and not (self.narrow and figure.terminal == "room")
        ]
        own = [figure for figure in in_table if figure.column not in ON_GPUS and self._says_something(figure)]
        on_gpus = ["GPUs", *(_HEADINGS[figure.column] for figure in in_table if figure.column in ON_GPUS)]
        return [
            "pid",
            "user",
            *(_HEADINGS[figure.column] for figure in own),
            *(on_gpus if any(holder.gpus for holder in self.holders) else []),
            "program",
        ]

    @cached_property
    def rows(self) -> list[HolderRow]:
        """All of them, sorted; those that only lock memory, which is not pinned, stand apart as the last ones."""
        return sorted(self._sorted(), key=lambda row: row.only_locked)

    def _sorted(self) -> list[HolderRow]:
        rows = holder_rows(self.holders, self.growing)
        if self.column not in self.columns:
            return rows
        known = [(key, row) for row in rows if (key := self._key(row)) is not None]
        amounts_first = self.column in _COLUMNS
        known.sort(key=lambda pair: pair[0], reverse=amounts_first != self.turned)
        return [*(row for _, row in known), *(row for row in rows if self._key(row) is None)]

    def lay_out(self, begin: int, end: int, room: int | None) -> TableLines:
        """These rows as lines. Small curves are drawn where every row has room for one in its line."""
        columns = self.columns
        laid = self._laid(columns, begin, end, room)
        if not self.trends or any(len(lines) > 1 for lines in laid.rows):
            return laid
        drawn = self._laid([*columns[:-1], TREND, columns[-1]], begin, end, room)
        return laid if any(len(lines) > 1 for lines in drawn.rows) else drawn

    def _laid(self, columns: Sequence[str], begin: int, end: int, room: int | None) -> TableLines:
        cells = [self._cells(row) for row in self.rows[begin:end]]
        mark = UP if (self.column in _COLUMNS) == self.turned else DOWN
        headings = [f"{name} {mark}" if name == self.column else name for name in columns]
        numbers = [place for place, name in enumerate(columns) if name not in _TEXTS]
        return lay_out(headings, [[cell[name] for name in columns] for cell in cells], numbers, room)

    def _says_something(self, figure: Figure) -> bool:
        always = figure.terminal == "always" or figure.probed
        return always or any((getattr(holder, figure.field) or 0) > figure.common for holder in self.holders)

    def _key(self, row: HolderRow) -> Any:
        """By what a row is sorted; ``None``: it is not known."""
        if self.column in _COLUMNS:
            return row.amounts[_COLUMNS[self.column]]
        if self.column == "program":
            return self._program(row)
        return {"pid": row.pid, "user": row.user, "GPUs": row.gpus}[self.column]

    def _program(self, row: HolderRow) -> str:
        return _shortened(one_line(row.name if self.narrow else row.command or row.name) or "n/a")

    def _cells(self, row: HolderRow) -> dict[str, str]:
        name = self._program(row)
        inside = f" [{one_line(row.container)}]" if row.container else ""
        return {
            "pid": str(row.pid),
            "user": one_line(row.user or "n/a"),
            **{heading: row.text(name) for name, heading in _HEADINGS.items() if heading in self.columns},
            "GPUs": ",".join(map(str, row.gpus)) or row.text("gpu_memory_bytes"),
            TREND: sparkline(self.trends.get((row.pid, row.started_at), ())),
            "program": f"{GROWS + ' ' if row.growing else ''}{name}{inside}",
        }


def _shortened(command: str) -> str:
    return command if len(command) <= COMMAND_CHARACTERS else command[: COMMAND_CHARACTERS - 1] + "…"
