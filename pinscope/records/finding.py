"""A conclusion, and what a reading of a run is made of."""

from __future__ import annotations

from typing import Literal

from pinscope.records.base import Record

Severity = Literal["good", "note", "warning", "critical"]


class Quantity(Record):
    """A named number. ``None`` means unknown, and ``reason`` says why."""

    name: str
    value: float | int | str | bool | None
    unit: str
    """``bytes``, ``bytes/second``, ``seconds``, ``share``, ``ratio``, ``count`` or ``text``."""
    spread: float | None = None
    """Relative spread of ``value``: half the interquartile range over the median, or half its 95 % interval."""
    reason: str | None = None


class Finding(Record):
    """A conclusion with its evidence and what to do next."""

    rule: str
    """Stable name of the rule, such as ``link-below-best``."""
    severity: Severity
    title: str
    detail: str
    evidence: tuple[Quantity, ...]
    advice: str
    code: str | None = None
    """Code to paste that does what ``advice`` says, where there is such."""


class Table(Record):
    """A plain table: every cell is a value in the unit of its column."""

    title: str
    columns: tuple[str, ...]
    units: tuple[str, ...]
    rows: tuple[tuple[float | int | str | bool | None, ...], ...]
    note: str = ""


class Reading(Record):
    """What an experiment concludes from its observations. Derived, never stored."""

    headline: tuple[Quantity, ...]
    tables: tuple[Table, ...]
    findings: tuple[Finding, ...]
