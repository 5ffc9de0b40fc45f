"""A run and what was concluded from it, for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pinscope.cli.terminal import SEVERITY_STYLES, print_line, print_prose, print_table
from pinscope.records.finding import Finding, Quantity, Reading, Table
from pinscope.report import facts
from pinscope.text import one_line

if TYPE_CHECKING:  # what a live view needs not wait for
    from pinscope.report.document import Document


def print_outcome(document: Document) -> None:
    """What a person wants after a run: headline, findings, and what to do next."""
    run = document.run
    _print_question(document)
    print_line(f"{facts.place(run)}, {run.status}, {run.observations:,} observations\n")
    _print_verdict(document.reading)
    _print_headline(document.reading.headline)
    print_findings(facts.by_severity(document.reading.findings))
    if run.observations:
        print_line(f"Run {run.id}. Next: pinscope report {run.id} -o report.html")
    else:
        print_line(f"Run {run.id} measured nothing.")


def print_run(document: Document) -> None:
    """Everything about a run but its raw rows."""
    _print_question(document)
    print_line()
    _print_verdict(document.reading)
    print_table(("", ""), [*facts.run_facts(document.run), ("Host", document.run.environment.host)])
    print_table(("", ""), facts.parameter_facts(document), title="Parameters")
    print_below_verdict(document.reading)


def print_below_verdict(reading: Reading) -> None:
    """What carries a verdict: figures, tables, findings."""
    _print_headline(reading.headline)
    for table in reading.tables:
        _print_table(table)
    print_findings(facts.by_severity(reading.findings))


def print_findings(findings: Sequence[Finding]) -> None:
    """Each with its numbers and what to do."""
    for finding in findings:
        title = f"{facts.SEVERITY_WORDS[finding.severity]}: {one_line(finding.title)}"
        print_prose(title, hanging="  ", style=SEVERITY_STYLES[finding.severity])
        print_prose(finding.detail, "  ", "  ")
        for quantity in finding.evidence:
            print_prose(one_line(f"· {quantity.name}: {facts.quantity_text(quantity)}"), "  ", "    ")
        print_prose(f"→ {finding.advice}", "  ", "    ")
        print_line()
        if finding.code:
            print_line(finding.code)


def _print_question(document: Document) -> None:
    """What was asked, and what a reader must know before the figures."""
    run = document.run
    print_prose(f"{document.title}: {document.question}")
    for caveat in [*facts.caveats(run), *facts.further_notes(run)]:
        print_prose(f"Note: {caveat}")


def _print_verdict(reading: Reading) -> None:
    if reading.verdict:
        print_prose(one_line(reading.verdict), style="bold")
        print_line()


def _print_headline(headline: Sequence[Quantity]) -> None:
    if headline:
        print_table(
            ("", ""), [(quantity.name, facts.quantity_text(quantity)) for quantity in headline], title="Headline"
        )


def _print_table(table: Table) -> None:
    numbers = [column for column, unit in enumerate(table.units) if unit != "text"]
    print_table(table.columns, facts.table_texts(table), title=table.title, numbers=numbers)
    if table.note:
        print_prose(table.note)
        print_line()
