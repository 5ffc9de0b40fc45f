"""The facts of a report in words: name and text, the same in every format that people read."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pinscope.records.budget import Budget
from pinscope.records.finding import Finding, Quantity, Severity, Table
from pinscope.records.run import HOST_MODEL_NOTE, LAB_TITLES, ExperimentRun, Run, Status, TraceRun
from pinscope.report.machine_facts import Fact, version_text
from pinscope.text import one_line
from pinscope.units import format_bytes, format_precision, format_seconds, format_value

if TYPE_CHECKING:  # what a live view needs not wait for
    from pinscope.report.document import Document

SEVERITY_WORDS: Mapping[Severity, str] = {
    "critical": "✕ Critical",
    "warning": "⚠ Warning",
    "note": "ℹ Note",
    "good": "✓ Good",
}
"""Severity → word with a sign, the worst first: never shown by colour alone."""

FIRST = 3
"""Figures, and findings, that stand beside the verdict; the rest comes later."""
PRINTED_ROWS = 30
"""A longer table is not printed: its figures are in the file."""

_UNFINISHED: Mapping[Status, str] = {
    "running": "is still going",
    "failed": "failed",
    "cancelled": "was cancelled",
    "interrupted": "was interrupted",
}


def caveats(run: Run) -> list[str]:
    """What a reader must know before the figures: an unfinished run, a recording of another machine, the host model,
    what a trace did not record."""
    found = []
    if run.status in _UNFINISHED:
        found.append(_unfinished(run))
    if run.recording:
        found.append("Recording: a real run that ships with PinScope. It was not measured on your machine.")
    if run.lab == "host":
        found.append(HOST_MODEL_NOTE)
    return [*found, *gaps(run)]


def gaps(run: Run) -> tuple[str, ...]:
    """What a trace did not record: its verdict and its figures are without that."""
    return run.notes if isinstance(run, TraceRun) else ()


def further_notes(run: Run) -> tuple[str, ...]:
    """Notes of a run that are no :func:`caveats`."""
    return () if gaps(run) else run.notes


def _unfinished(run: Run) -> str:
    """How the run ended, on what its figures rest, and why."""
    if run.status == "running":
        rests = "the figures come from what it has stored so far"
    elif run.observations:
        rests = "the figures come from what it had stored until then"
    else:
        rests = "nothing was measured until then"
    said = f"This run {_UNFINISHED[run.status]}: {rests}."
    return f"{said} Reason: {run.error.rstrip('.')}." if run.error else said


def verdict(document: Document) -> str:
    """The verdict, or why there is none."""
    unfinished = _UNFINISHED.get(document.run.status)
    why = f"the run {unfinished}" if unfinished else "too little was measured"
    return document.reading.verdict or f"No answer: {why}."


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """Findings, the worst first."""
    order = list(SEVERITY_WORDS)
    return sorted(findings, key=lambda finding: order.index(finding.severity))


def quantity_text(quantity: Quantity) -> str:
    """A quantity's value and how well it is known, or ``n/a`` and why."""
    text = format_value(quantity.value, quantity.unit)
    if quantity.value is None:
        return f"{text}: {quantity.reason}" if quantity.reason else text
    return f"{text} {format_precision(quantity.spread, quantity.repeats)}".rstrip()


def table_texts(table: Table) -> list[list[str]]:
    """The cells of a table as texts, each with its unit; of an unknown value what is said of it instead."""
    nothing = (None,) * len(table.rows)
    reasons = [table.missing.get(column, nothing) for column in table.columns]
    return [
        [
            (why[number] if value is None else None) or format_value(value, unit)
            for value, unit, why in zip(row, table.units, reasons, strict=True)
        ]
        for number, row in enumerate(table.rows)
    ]


def place(run: Run) -> str:
    """Where a run was measured: the host model, or the names of the GPUs that it used or watched."""
    devices = [run.gpu] if run.gpu else run.environment.devices if run.lab in {"live", "traced"} else []
    names = ", ".join(dict.fromkeys(device.name for device in devices))
    return f"{LAB_TITLES[run.lab]}: {names}" if names else LAB_TITLES[run.lab]


def size_word(run: Run) -> str | None:
    """``quick`` or ``full``; ``None`` for a kind of run that has no size."""
    if not isinstance(run, ExperimentRun):
        return None
    return "quick" if run.quick else "full"


def run_facts(run: Run) -> list[Fact]:
    """What was run, where and when."""
    size = size_word(run)
    return [
        ("Run", run.id),
        ("Experiment", f"{run.experiment}, {size}" if size else run.experiment),
        ("Measured on", place(run)),
        ("Status", run.status),
        ("Started", f"{run.created_at:%Y-%m-%d %H:%M:%S %Z}"),
        ("Took", _took(run)),
        ("Observations", f"{run.observations:,}"),
        *([("Takes at most", _budget_text(run.budget))] if isinstance(run, ExperimentRun) else []),
        ("Measured by PinScope", version_text(run.environment)),
    ]


def _budget_text(budget: Budget) -> str:
    return (
        f"{format_bytes(budget.pinned_bytes)} pinned, {format_bytes(budget.pageable_bytes)} pageable, "
        f"{format_bytes(budget.device_bytes)} device memory"
    )


def _took(run: Run) -> str:
    seconds = (run.finished_at - run.created_at).total_seconds() if run.finished_at else None
    if seconds is not None and seconds < 0:
        return "n/a: the clock was set back meanwhile"
    return format_seconds(seconds)


def parameter_facts(document: Document) -> list[Fact]:
    """Parameters by title, with their units."""
    fields: Mapping[str, Any] = document.parameter_schema.get("properties", {})
    found = []
    for name, value in document.run.params.items():
        described = fields.get(name, {})
        found.append((str(described.get("title", name)), _parameter_text(value, str(described.get("unit", "text")))))
    return found


def _parameter_text(value: Any, unit: str) -> str:
    if isinstance(value, list | tuple) and not value:
        return "none"
    if isinstance(value, list | tuple) and unit == "command":
        return one_line(shlex.join(map(str, value)))
    if isinstance(value, list | tuple):
        return ", ".join(_parameter_text(item, unit) for item in value)
    if value is None or isinstance(value, str | int | float):
        return format_value(value, unit)
    return str(value)
