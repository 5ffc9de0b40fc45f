"""A conclusion, and what a reading of a run is made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Literal, Protocol

from pinscope.records.base import Record

Severity = Literal["good", "note", "warning", "critical"]
"""By what it costs to ignore the finding, on the machine where it was found.

``critical``: data is wrong, memory runs out, or a program fails. ``warning``: a program that does the ordinary thing
takes at least :data:`COSTLY` times as long, or as much memory, as it need. ``note``: less than that, or only in a case
that the title names. ``good``: nothing.
"""
COSTLY = 1.25
"""How many times as long, or as much, something must take for a warning."""
Cell = float | int | str | bool | None


class Quantity(Record):
    """A named number. ``None`` means unknown, and ``reason`` says why."""

    name: str
    """What it is, for people."""
    value: Cell
    """The number, text or truth value, in ``unit``."""
    unit: str
    """``bytes``, ``bytes/second``, ``seconds``, ``share``, ``ratio``, ``count`` or ``text``."""
    spread: float | None = None
    """What stands after ±: how far the true value may lie from ``value`` at most, relative to it, with 95 % confidence
    (of a median: the farther end of its interval)."""
    repeats: int | None = None
    """Of how many repeats it is the median, where they are too few for a ``spread``."""
    reason: str | None = None
    """Why ``value`` is ``None``."""
    key: str | None = None
    """Which figure of a run's headline it is, such as ``pinned.h2d.rate``, whatever its size, its value and the words
    of ``name``: unique in the run, and the same in all runs of its experiment."""


class _Explained(Protocol):
    """A record that says why figures of it are ``None``."""

    @property
    def missing(self) -> Mapping[str, str]: ...


def quantity(
    name: str,
    value: Cell,
    unit: str,
    *,
    reason: str | None = None,
    spread: float | None = None,
    repeats: int | None = None,
    key: str | None = None,
) -> Quantity:
    """A :class:`Quantity`; of a known value without the ``reason`` why it would be unknown."""
    reason = reason if value is None else None
    return Quantity(name=name, value=value, unit=unit, reason=reason, spread=spread, repeats=repeats, key=key)


def known(name: str, record: _Explained, field: str, unit: str) -> Quantity:
    """A figure of a record, with the reason that the record gives where it is unknown."""
    return quantity(name, getattr(record, field), unit, reason=record.missing.get(field))


class Finding(Record):
    """A conclusion with its evidence and what to do next."""

    rule: str
    """Stable name of the rule, such as ``link-below-best``."""
    severity: Severity
    """``good``, ``note``, ``warning`` or ``critical``."""
    title: str
    """The conclusion, with the number that decides."""
    detail: str
    """What it rests on, one or two sentences."""
    evidence: tuple[Quantity, ...]
    """The numbers behind it."""
    advice: str
    """What to do next."""
    code: str | None = None
    """Code to paste that does what ``advice`` says, where there is such."""


def finding(
    severity: Severity, rule: str, *evidence: Quantity, title: str, detail: str, advice: str, code: str | None = None
) -> Finding:
    """A :class:`Finding`, its evidence one after the other."""
    return Finding(
        rule=rule, severity=severity, title=title, detail=detail, evidence=evidence, advice=advice, code=code
    )


def good(rule: str, *evidence: Quantity, title: str, detail: str, advice: str = "Nothing to do.") -> Finding:
    """A finding that all is well."""
    return finding("good", rule, *evidence, title=title, detail=detail, advice=advice)


def costing(times: float) -> Severity:
    """The severity of what makes something take so many times as long, or as much memory, as it need."""
    return "warning" if times >= COSTLY else "note"


note = partial(finding, "note")
warning = partial(finding, "warning")
critical = partial(finding, "critical")
wrong_data = partial(
    critical,
    advice="Do not trust this machine's copies. Run it again; if it repeats, check ECC counters (nvidia-smi -q -d "
    "ECC), the kernel log and the link's replay counter.",
)
"""What was copied did not arrive as it was sent."""


class Table(Record):
    """A plain table: every cell is a value in the unit of its column."""

    title: str
    """What it shows."""
    columns: tuple[str, ...]
    """A heading for each column."""
    units: tuple[str, ...]
    """A unit for each column, as in a quantity."""
    rows: tuple[tuple[Cell, ...], ...]
    """One list of cells a row."""
    note: str = ""
    """What a reader must know; may be empty."""
    missing: Mapping[str, tuple[str | None, ...]] = {}
    """Heading of a column → for each row what is said where its cell is ``None``."""


def table(
    title: str,
    columns: Mapping[str, str],
    rows: Iterable[Sequence[Cell]],
    note: str = "",
    missing: Mapping[str, tuple[str | None, ...]] | None = None,
) -> Table:
    """A :class:`Table`; ``columns``: heading → unit."""
    return Table(
        title=title,
        columns=tuple(columns),
        units=tuple(columns.values()),
        rows=tuple(map(tuple, rows)),
        note=note,
        missing=missing or {},
    )


class Reading(Record):
    """What an experiment concludes from its observations. Derived, never stored."""

    verdict: str | None = None
    """The answer to the experiment's question: one sentence, with the figure that decides. ``None`` where too little
    was measured for an answer."""
    headline: tuple[Quantity, ...]
    """The figures that answer the question. A page shows the first three; what a person would repeat comes first."""
    tables: tuple[Table, ...]
    """All figures that were derived."""
    findings: tuple[Finding, ...]
    """What was concluded. Of equal severity, what costs most comes first."""
