"""A run on the terminal: how far it is, how it ended, and what came out of it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from pinscope.cli import terminal
from pinscope.errors import Cancelled, MeasurementFailed
from pinscope.records.run import LAB_TITLES, ExperimentRun, Finding, Origin, Progress, Quantity, Reading, Run, Table
from pinscope.report import facts
from pinscope.text import one_line
from pinscope.units import format_about

if TYPE_CHECKING:
    from pinscope.report.facts import Document
    from pinscope.runner.jobs import Job
    from pinscope.store.store import Store

LINE_SECONDS = 10.0
"""Where there is no terminal, a line at most this often."""


@contextmanager
def store_to_read() -> Iterator[Store]:
    """The store, with runs marked whose child is gone. Says in one line if nothing can be stored in it."""
    from pinscope.runner.jobs import open_store  # SQLAlchemy takes a third of a second

    with open_store() as store:
        if store.refusal:
            terminal.complain(f"nothing can be stored in {store.name}: {store.refusal}")
        yield store


def follow(store: Store, run: ExperimentRun, job: Job, stop: terminal.Stop) -> None:
    """Show how far the run is until its child ends or somebody asks to stop."""
    from pinscope.runner.jobs import progress_of

    about = format_about(run.budget.seconds)
    if run.lab == "host":  # only GPU runs were recorded to compare with
        about += ", longer on a slow processor" + ("" if run.quick else ", --quick takes less")
    stops = "Ctrl-C stops and keeps what was measured"
    terminal.complain(f"{run.experiment} on {LAB_TITLES[run.lab]}, run {run.id}, {about} · {stops}")
    with progress_shown() as show:
        failing = False
        for seen in progress_of(store, job):
            if stop.asked:
                break
            if isinstance(seen, Progress):
                show(seen)
            elif not failing and job.child.poll() is None:
                terminal.complain(f"{seen}; the run goes on, and keeps what it measures until it can be stored")
            failing = not isinstance(seen, Progress)


def say_how_it_ended(run: Run) -> int:
    """A line on stderr if the run failed or was stopped; the exit code that fits."""
    if run.status == "done":
        return 0
    reason = f": {one_line(run.error)}" if run.error else ""
    terminal.complain(f"run {run.id} {'failed' if run.status == 'failed' else f'was {run.status}'}{reason}")
    return Cancelled.exit_code if run.status == "cancelled" else MeasurementFailed.exit_code


def progress_shown(endless: bool = False) -> AbstractContextManager[Callable[[Progress], None]]:
    """Gives what shows progress on stderr: a bar in a terminal, else plain lines. ``endless``: nobody knows the end."""
    return _progress_bar(endless) if sys.stderr.isatty() else _lines(endless)


@contextmanager
def _progress_bar(endless: bool) -> Iterator[Callable[[Progress], None]]:
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    share = () if endless else (BarColumn(), TaskProgressColumn())
    columns = (*share, TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=terminal.console(sys.stderr), transient=True) as bar:
        task = bar.add_task("starting", total=None if endless else 1.0)
        yield lambda progress: bar.update(task, completed=progress.fraction, description=one_line(progress.message))


@contextmanager
def _lines(endless: bool) -> Iterator[Callable[[Progress], None]]:
    said = time.monotonic()
    waiting: str | None = None

    def show(progress: Progress) -> None:
        nonlocal said, waiting
        if progress.waiting_for != waiting or time.monotonic() - said >= LINE_SECONDS:
            waiting, said = progress.waiting_for, time.monotonic()
            terminal.complain(f"{'' if endless else f'{progress.fraction:.0%} '}{one_line(progress.message)}")

    yield show


def print_outcome(document: Document) -> None:
    """What a person wants after a run: headline, findings, and what to do next."""
    run = document.run
    _print_question(document)
    terminal.print_line(f"{facts.place(run)}, {run.status}, {run.observations:,} observations\n")
    _print_verdict(document.reading)
    _print_headline(document.reading.headline)
    print_findings(facts.by_severity(document.reading.findings))
    if run.observations:
        report = f"pinscope report {run.id} -o report.html"
        terminal.print_line(f"All of it: pinscope runs show {run.id}; a report: {report}")
    else:
        terminal.print_line(f"Run {run.id} measured nothing.")


def print_run(document: Document) -> None:
    """Everything about a run but its raw rows."""
    _print_question(document)
    terminal.print_line()
    _print_verdict(document.reading)
    terminal.print_table(("", ""), [*facts.run_facts(document.run), ("Host", document.run.environment.host)])
    terminal.print_table(("", ""), facts.parameter_facts(document), title="Parameters")
    print_below_verdict(document.reading)


def print_below_verdict(reading: Reading) -> None:
    """What carries a verdict: its own tables, figures, further tables, findings."""
    for table in facts.answer_tables(reading):
        print_reading_table(table)
    _print_headline(reading.headline)
    for table in facts.further_tables(reading):
        print_reading_table(table)
    print_findings(facts.by_severity(reading.findings))


def print_findings(findings: Sequence[Finding]) -> None:
    """Each with its numbers and what to do."""
    for finding in findings:
        title = f"{facts.SEVERITY_WORDS[finding.severity]}: {one_line(finding.title)}"
        terminal.print_prose(title, hanging="  ", style=terminal.SEVERITY_STYLES[finding.severity])
        terminal.print_prose(finding.detail, "  ", "  ")
        for quantity in finding.evidence:
            terminal.print_prose(one_line(f"· {quantity.name}: {facts.quantity_text(quantity)}"), "  ", "    ")
        terminal.print_prose(f"→ {finding.advice}", "  ", "    ")
        terminal.print_line()
        if finding.code:
            terminal.print_line(finding.code)


def _print_question(document: Document) -> None:
    """What was asked, and what a reader must know before the figures."""
    run = document.run
    terminal.print_prose(f"{document.title}: {document.question}")
    for caveat in [*facts.caveats(run), *facts.further_notes(run)]:
        terminal.print_prose(f"Note: {caveat}")


def _print_verdict(reading: Reading) -> None:
    if reading.verdict:
        terminal.print_prose(one_line(reading.verdict), style="bold")
        terminal.print_line()


def _print_headline(headline: Sequence[Quantity]) -> None:
    if headline:
        terminal.print_table(
            ("", ""), [(quantity.name, facts.quantity_text(quantity)) for quantity in headline], title="Headline"
        )


def print_parts(experiment: str, lab: Origin, verdict: str, parts: Iterable[Table]) -> None:
    """What several runs say together: the verdict, then tables, of which empty ones are left out."""
    terminal.print_line(f"{experiment}, {LAB_TITLES[lab]}")
    terminal.print_prose(verdict, style="bold")
    terminal.print_line()
    for part in parts:
        if part.rows:
            print_reading_table(part)


def print_reading_table(table: Table) -> None:
    """A table of a reading, with its note."""
    columns, rows, numbers = facts.barred(table)
    terminal.print_table(columns, rows, title=table.title, numbers=numbers)
    if table.note:
        terminal.print_prose(table.note)
        terminal.print_line()
