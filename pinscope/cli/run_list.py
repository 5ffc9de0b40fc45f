"""The list of runs in a terminal: one line a run, with its answer."""

from __future__ import annotations

import textwrap
from bisect import bisect_left
from collections.abc import Iterable, Sequence

from pinscope.cli.table import GAP
from pinscope.cli.terminal import complain, print_table, terminal_columns
from pinscope.records.run import Run
from pinscope.report.facts import place
from pinscope.store.damage import DamagedRun
from pinscope.text import one_line
from pinscope.units import format_share

WIDE = 120
"""Columns from which a line also says where the run was measured."""
_PLACE_CHARACTERS = 40
LEAST_CHARACTERS = 20
"""Of an answer, however narrow the terminal is."""


def print_runs(runs: Iterable[Run | DamagedRun]) -> bool:
    """Print the runs in the order given, those that ship with PinScope apart; false if there are none.

    In a terminal a line is cut where the terminal ends. Elsewhere, as in a file, it is whole.
    """
    own, recordings = list[list[str]](), list[list[str]]()
    for run in runs:
        if isinstance(run, DamagedRun):
            complain(str(run))
            own.append([run.id, "?", "?", f"damaged: {run.why}"])
        else:
            place_of_run = place(run)[:_PLACE_CHARACTERS]
            (recordings if run.recording else own).append([run.id, run.experiment, place_of_run, one_line(answer(run))])
    shown = beginnings([row[0] for row in (*own, *recordings)])
    for title, rows in (("", own), ("Recordings, which ship with PinScope:", recordings)):
        if rows:
            _print(title, [[shown[row[0]], *row[1:]] for row in rows])
    return bool(own or recordings)


def answer(run: Run) -> str:
    """What came out: the verdict, or what kept the run from one."""
    if run.status == "running":
        return f"running: {format_share(run.progress.fraction)} {run.progress.message}".rstrip()
    if run.status != "done":
        return f"{run.status}: {run.error}" if run.error else run.status
    return run.verdict or f"done: {run.observations:,} observations"


def beginnings(ids: Sequence[str]) -> dict[str, str]:
    """Id → its beginning without the part after the last hyphen, where no other id begins so."""
    in_order = sorted(set(ids))

    def is_unique(start: str) -> bool:
        first = bisect_left(in_order, start)
        return not any(other.startswith(start) for other in in_order[first + 1 : first + 2])

    starts = {run_id: run_id.rpartition("-")[0] for run_id in ids}
    return {run_id: start if start and is_unique(start) else run_id for run_id, start in starts.items()}


def _print(title: str, rows: list[list[str]]) -> None:
    room = terminal_columns()
    headings = ["id", "experiment", "on", "answer"]
    if room is not None and room < WIDE:
        for line in (headings, *rows):
            del line[2]
    if room is not None:
        widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)][:-1]
        left = max(room - sum(widths) - len(GAP) * len(widths), LEAST_CHARACTERS)
        for row in rows:
            row[-1] = textwrap.shorten(row[-1], left, placeholder=" …")
    print_table(headings, rows, title=title)
