"""The figures of a run's cells as one row of numbers, and the names of these: how a fleet keeps a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from pydantic import ValidationError

from pinscope.analysis.cell_tables import cell_tables, short
from pinscope.analysis.cells import NO_LABEL, Better, Label, Value
from pinscope.analysis.columns import Columns
from pinscope.analysis.comparison import CellFigure, Measured
from pinscope.analysis.read_rows import Row
from pinscope.records.base import LAYOUT_CHARACTERS, MOST_FIGURES, Record
from pinscope.records.run import RunFigures

NODE = "buffers.node"
"""Key of a run's surroundings: whether its host buffers lay on the NUMA node of the GPU."""
FINDING = "finding "
"""Begins such a key, with the rule of a finding that the run has."""
HAS = "yes"
MOST_FINDINGS = 10


class LabelNames(Record):
    """A label, and what it may be: plain, and in words."""

    name: str
    title: str
    unit: str
    values: tuple[tuple[Any, str], ...]


class FigureName(Record):
    """A value that is compared."""

    name: str
    title: str
    unit: str
    better: Better


class CellNames(Record):
    """Cells of one class: of each the places of its labels; each has all figures, the first stands for the cell."""

    kind: str
    labels: tuple[LabelNames, ...]
    figures: tuple[FigureName, ...]
    cells: tuple[tuple[int, ...], ...]


class Layout(Record):
    """What the numbers of a run are, in their order: class by class, cell by cell, figure by figure."""

    kinds: tuple[CellNames, ...]


def figures_of(measured: Measured, rows: Sequence[Row]) -> RunFigures | None:
    """The figures of a run; ``None`` of one without any, or with more than are kept."""
    kinds, values = list[CellNames](), list[float | None]()
    for table in cell_tables([measured.cells]):
        (cells,) = table.runs
        said = [{key[place]: table.texts[key][place] for key in cells} for place in range(len(table.labels))]
        labels = [
            LabelNames(name=name, values=tuple(texts.items()), **vars(mark))
            for (name, mark), texts in zip(table.labels.items(), said, strict=True)
        ]
        figures = [FigureName(name=name, **vars(value)) for name, value in table.values.items()]
        known = [list(texts) for texts in said]
        places = tuple(tuple(map(list.index, known, key)) for key in cells)
        kinds.append(CellNames(kind=table.kind, labels=tuple(labels), figures=tuple(figures), cells=places))
        samples = (cell.get(name) for cell in cells.values() for name in table.values)
        values += [None if sample is None else short(sample[0]) for sample in samples]
    layout = Layout(kinds=tuple(kinds)).model_dump_json()
    if not values or len(values) > MOST_FIGURES or len(layout) > LAYOUT_CHARACTERS:
        return None
    return RunFigures(layout=layout, values=tuple(values), facts=_facts(measured, rows))


def _facts(measured: Measured, rows: Sequence[Row]) -> dict[str, str]:
    rules = [finding.rule for finding in measured.findings if finding.severity != "good"]
    facts = {f"{FINDING}{rule}": HAS for rule in rules[:MOST_FINDINGS]}
    gpu = measured.run.gpu
    nodes = {node for node in Columns.of(rows).column("host_node").distinct if node is not None}
    if gpu is not None and gpu.numa_node is not None and len(nodes) == 1:
        facts[NODE] = "the GPU's" if nodes == {gpu.numa_node} else "another than the GPU's"
    return facts


@lru_cache(maxsize=256)
def named_figures(layout: str) -> Sequence[CellFigure] | None:
    """The figures of a layout in the order of their numbers; ``None`` where it cannot be read."""
    try:
        kinds = Layout.model_validate_json(layout).kinds
        return tuple(figure for kind in kinds for cell in kind.cells for figure in _named(kind, cell))
    except (ValidationError, IndexError):
        return None


def _named(kind: CellNames, cell: Sequence[int]) -> Iterator[CellFigure]:
    marks = {label.name: Label(label.title, label.unit) for label in kind.labels}
    labels, texts = dict[str, Any](), dict[str, str]()
    for label, place in zip(kind.labels, cell, strict=True):
        plain, text = label.values[place]
        labels[label.name] = tuple(plain) if isinstance(plain, list) else plain
        if len(label.values) > 1 and text != NO_LABEL:
            texts[label.name] = text
    for place, figure in enumerate(kind.figures):
        value = Value(figure.title, figure.unit, figure.better)
        yield CellFigure(kind.kind, marks, labels, texts, figure.name, value, place == 0)
