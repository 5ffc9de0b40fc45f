"""What ``pinscope live`` writes to stdout: tables, JSON or CSV, one moment after the other."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Sequence
from typing import Any, Literal

from pinscope.cli.live_view import Line, View, tail, whole
from pinscope.cli.reading import print_findings
from pinscope.cli.terminal import print_json, print_line, print_prose, styled, terminal_columns
from pinscope.records.figure import figures
from pinscope.records.snapshot import GpuUse, Holder, Snapshot
from pinscope.report.csv_cell import csv_cell
from pinscope.report.holder_table import COLUMNS
from pinscope.report.json_report import snapshot_document
from pinscope.text import one_line, visible

Form = Literal["table", "json", "csv"]

_FIRST_COLUMNS = (
    "taken_at",
    "pid",
    "name",
    "user",
    "container",
    "started_at",
    "host_alloc_bytes",
    "registered_bytes",
    "locked_bytes",
    "vm_pin_bytes",
    "managed_bytes",
    "inherited_bytes",
    "hugetlb_bytes",
    "rss_bytes",
    "gpu_memory_bytes",
    "page_table_bytes",
    "command",
    "driver_memory_bytes",
    "context_pinned_bytes",
)
"""Columns of CSV keep their place: that of any other figure comes after these."""


def print_once(form: Form, view: View) -> None:
    """One moment, with all that is to be said of it."""
    if form == "json":
        print_json(snapshot_document(view.snapshot, view.findings))
        return
    if form == "csv":
        CsvRows()(view)
        return
    print_lines(whole(view, terminal_columns()))
    print_line()
    for gap in view.snapshot.unreadable:
        print_prose(f"Cannot be read: {gap.what}: {gap.reason}.", hanging="  ")
        if gap.advice:
            print_prose(f"→ {gap.advice}", "  ", "    ")
    if view.snapshot.unreadable:
        print_line()
    print_findings(view.findings)


def printer(form: Form) -> Callable[[View], None]:
    """Prints one moment of many."""
    if form == "csv":
        return CsvRows()
    return _print_json_line if form == "json" else _print_table


def print_lines(lines: Sequence[Line]) -> None:
    """Lines, in their styles in a terminal."""
    for line in lines:
        sys.stdout.write(styled(visible(line.text), line.style) + "\n")


def _print_table(view: View) -> None:
    room = terminal_columns()
    print_lines([*whole(view, room), *tail(view, room)])
    print_line()


def _print_json_line(view: View) -> None:
    shown = {holder.pid for holder in view.snapshot.holders}
    more = {
        "events": [event.model_dump(mode="json") for event in view.events],
        "growing": sorted(shown & set(view.growing)),
    }
    print_json(snapshot_document(view.snapshot, view.findings) | more, on_one_line=True)


class CsvRows:
    """Prints the rows of one moment after the other; the header before the first."""

    def __init__(self) -> None:
        self._writer = csv.writer(sys.stdout, lineterminator="\n")
        self._begun = False

    def __call__(self, view: View) -> None:
        if not self._begun:
            self._writer.writerow(csv_columns())
            self._begun = True
        for holder in view.snapshot.holders:
            row = _csv_row(view.snapshot, holder)
            self._writer.writerow([csv_cell(row[name]) for name in csv_columns()])


def csv_columns() -> tuple[str, ...]:
    """Names of the columns: who a holder is, and its figures."""
    others = (name for name, figure in COLUMNS.items() if figure.csv)
    return tuple(dict.fromkeys((*_FIRST_COLUMNS, *others)))


def _csv_row(seen: Snapshot, holder: Holder) -> dict[str, Any]:
    row: dict[str, Any] = {name: getattr(holder, name, None) for name in csv_columns()}
    row |= {
        "taken_at": seen.taken_at.isoformat(),
        "started_at": holder.started_at.isoformat() if holder.started_at else None,
    }
    for figure in figures(GpuUse):
        parts = [getattr(use, figure.field) for use in holder.gpus]
        row[figure.column] = None if None in parts else figure.together(parts)
    return {name: one_line(value) if isinstance(value, str) else value for name, value in row.items()}
