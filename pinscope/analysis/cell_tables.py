"""Cells as they are compared: of each class a table, by their labels, of what each run says of each figure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from pinscope.analysis.between_runs import Sample
from pinscope.analysis.cells import Label, Value, label_text, labels_of, plain, plain_label, values_of
from pinscope.analysis.statistics import Summary

DIGITS = 6
"""Of a figure that is kept without its rows."""
CellKey = tuple[Any, ...]
"""The labels of a cell, plain."""


@dataclass(frozen=True)
class CellTable:
    """The cells of one class, as they are compared.

    Attributes:
        kind: name of the class.
        labels: name → label; ``values``: name → value, those that are compared, first first.
        runs: of each run, labels → name of a value → what it is there, of those that are known.
        texts: labels → each in words.
    """

    kind: str
    labels: Mapping[str, Label]
    values: Mapping[str, Value]
    runs: Sequence[Mapping[CellKey, Mapping[str, Sample]]]
    texts: Mapping[CellKey, Sequence[str]]


def cell_tables(runs: Sequence[Sequence[Any]]) -> list[CellTable]:
    """The cells of runs, class by class.

    Args:
        runs: the cells of each run.
    """
    return [_cell_table(kind, runs) for kind in dict.fromkeys(type(cell) for cells in runs for cell in cells)]


def short(value: float) -> float:
    """A figure as it is kept: in a baseline, and for a fleet."""
    return float(f"{value:.{DIGITS}g}")


def _cell_table(kind: type, runs: Sequence[Sequence[Any]]) -> CellTable:
    cells = [[cell for cell in run if type(cell) is kind] for run in runs]
    labels, values = labels_of(kind), _compared_values(kind, [cell for of_run in cells for cell in of_run])
    tables, texts = list[dict[CellKey, Mapping[str, Sample]]](), dict[CellKey, Sequence[str]]()
    for of_run in cells:
        table = dict[CellKey, Mapping[str, Sample]]()
        for cell in of_run:
            own = [(mark, getattr(cell, name)) for name, mark in labels.items()]
            key = tuple(plain_label(mark, label) for mark, label in own)
            if key not in texts:
                texts[key] = [label_text(mark, label) for mark, label in own]
            samples = ((name, _sample(cell, name, said)) for name, (_, said) in values.items())
            table[key] = {name: sample for name, sample in samples if sample is not None}
        tables.append(table)
    return CellTable(kind.__name__, labels, {name: value for name, (value, _) in values.items()}, tables, texts)


def _compared_values(kind: type, cells: Sequence[Any]) -> dict[str, tuple[Value, str]]:
    """Name → a value that is compared, and the one that knows its ±: what is measured, and what is counted.

    A rate that follows from the first of them stands in its place: the same, as people know it. What else follows from
    others is said by them.
    """
    own = {name: value for name, value in values_of(kind).items() if value.better != "neither" and value.unit != "text"}
    measured = [name for name in own if any(isinstance(getattr(cell, name), Summary) for cell in cells)]
    stored = [name for name in own if name in {made.name for made in fields(kind)} and name not in measured]
    chosen = {name: (own[name], name) for name in (*measured, *stored)}
    rates = [name for name in own if name not in chosen and own[name].unit == "bytes/second"]
    if rates and measured and own[measured[0]].unit == "seconds":
        del chosen[measured[0]]
        chosen = {rates[0]: (own[rates[0]], measured[0]), **chosen}
    return chosen


def _sample(cell: Any, name: str, measured: str) -> Sample | None:
    """A figure and how far another run's may be off; ``None`` where the cell has none."""
    value, said = plain(getattr(cell, name)), getattr(cell, measured)
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return float(value), said.uncertainty if isinstance(said, Summary) else math.inf
