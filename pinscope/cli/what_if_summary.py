"""What is said when a program has run a second time, with lines pinned: on stderr, as of every trace."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from pinscope.cli.terminal import SEVERITY_STYLES, complain, console
from pinscope.cli.trace_summary import WIDTH, print_columns
from pinscope.experiments.registry import checked_rows
from pinscope.report import facts
from pinscope.report.document import open_document
from pinscope.report.json_report import run_document
from pinscope.text import one_line
from pinscope.tracing.sites import seen_in
from pinscope.tracing.trace.findings import what_if_findings
from pinscope.tracing.trace.reading import what_if_in, what_if_tables, what_if_verdict

if TYPE_CHECKING:
    from rich.console import Console

    from pinscope.records.finding import Table
    from pinscope.runner.what_if import Compared


def print_what_if(compared: Compared) -> None:
    """The verdict, both runs beside each other, what was done for each line, and what is left."""
    from rich.text import Text

    if compared.problem:
        complain(f"--what-if: {compared.problem}")
    if compared.second is None:
        return
    document = open_document(compared.second.run, compared.second.rows, with_charts=False)
    rows = checked_rows(document.run.experiment, document.rows)
    what = what_if_in(document.run, seen_in(document.run, rows), rows)
    if what is None:
        return
    out = console(sys.stderr)
    if not sys.stderr.isatty():  # a file has no width
        out.width = WIDTH
    out.print()
    out.print(Text(f"pinscope: {one_line(what_if_verdict(what))}", "bold"))
    for each in what_if_tables(what):
        if each.rows:
            _print_table(out, each)
    for finding in what_if_findings(what):
        words = f"{facts.SEVERITY_WORDS[finding.severity]}: {one_line(finding.title)}"
        out.print(Text(words, SEVERITY_STYLES[finding.severity]))
    first, second = compared.before.run.id, compared.second.run.id
    out.print(Text(f"Run {second}. Next:"))
    for command in (f"pinscope runs show {second}", f"pinscope report {first} {second} -o report.html"):
        out.print(Text(f"  {command}"), soft_wrap=True)


def what_if_document(compared: Compared) -> dict[str, Any]:
    """``what_if``: the second run as a document of its own; nothing where there is none."""
    if compared.after is None:
        return {}
    return {"what_if": run_document(open_document(compared.after.run, compared.after.rows, with_charts=False))}


def _print_table(out: Console, table: Table) -> None:
    from rich.text import Text

    out.print(Text(one_line(table.title)))
    numbers = [place for place, unit in enumerate(table.units) if unit != "text"]
    print_columns(out, table.columns, facts.table_texts(table), numbers)
    out.print(Text(f"{one_line(table.note)}\n" if table.note else ""))
