"""A run's rows taken apart: those that count, groups of them, and medians of a group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from pinscope.analysis.statistics import Summary, summarize

Row = Mapping[str, Any]
"""One observation as it is stored: a flat mapping with the observation's field names."""
Rows = Sequence[Row]
_Item = TypeVar("_Item")
_Key = TypeVar("_Key")


def grouped(items: Iterable[_Item], key: Callable[[_Item], _Key]) -> dict[_Key, list[_Item]]:
    """Items with the same key together, in the order of their first."""
    groups: dict[_Key, list[_Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def counted(rows: Iterable[Row]) -> list[Row]:
    """Those that are no warm-ups."""
    return [row for row in rows if not row["warmup"]]


def from_then_on(items: Sequence[_Item], holds: Callable[[_Item], bool]) -> _Item | None:
    """The first item from which on it holds for every one; what comes and goes has another cause."""
    first = None
    for item in reversed(items):
        if not holds(item):
            break
        first = item
    return first


def labels(*names: str) -> Callable[[Row], tuple[Any, ...]]:
    """A key of :func:`grouped`: the values of these fields."""
    return lambda row: tuple(row[name] for name in names)


def summary(rows: Iterable[Row], name: str) -> Summary | None:
    """Median and spread of a field, over the rows that have it; ``None`` where none has."""
    values = [value for row in rows if (value := row.get(name)) is not None]
    return summarize(values) if values else None


def median(summary: Summary | None) -> float | None:
    """The median, where there is one."""
    return summary.median if summary else None
