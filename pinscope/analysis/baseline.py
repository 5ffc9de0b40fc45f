"""What is kept of runs as a baseline: of each cell the figures that are compared, run by run; and these as runs again.

A file of it is reviewed and stands in version control, so that it has no rows: of each figure the median of the runs,
how far they lie apart, and each run's value with its ±, from which alone later runs are judged.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, make_dataclass, replace
from statistics import median
from typing import Annotated, Any

from pydantic import Field, SerializeAsAny, field_validator

from pinscope.analysis.cells import Label, Value, label_text, labels_of, plain_label, values_of
from pinscope.analysis.comparison import Measured, Side, compared_values, sample_of
from pinscope.analysis.machine_keys import machine_keys
from pinscope.analysis.read_rows import grouped
from pinscope.analysis.statistics import Summary
from pinscope.errors import BadInput
from pinscope.records.base import Record
from pinscope.records.run import ExperimentRun, Run, TraceRun, parse_run

FORMAT = 1
"""Version of the file; additive changes keep it."""
DIGITS = 6
"""Of a figure in the file."""


class KeptFigure(Record):
    """One figure of a cell; of its runs in their order."""

    median: float
    """Of the runs: for people, as the two that follow."""
    unit: str
    """As of a :class:`~pinscope.records.run.Quantity`."""
    spread: float
    """From the lowest run to the highest, relative to the median."""
    runs: tuple[tuple[float, float | None] | None, ...]
    """The value of each run, and its ± (relative; null: not known); null where a run has none."""


class KeptCell(Record):
    """One cell."""

    kind: str
    """Name of the class of cells."""
    labels: Mapping[str, Any]
    figures: Mapping[str, KeptFigure]


class KeptRuns(Record):
    """Runs of one experiment on one machine."""

    runs: Annotated[tuple[str, ...], Field(min_length=1)]
    """Their ids."""
    run: SerializeAsAny[Run]
    """The first of them: parameters, environment."""
    cells: tuple[KeptCell, ...]

    @field_validator("run", mode="before")
    @classmethod
    def _parsed(cls, run: Any) -> Any:
        return parse_run(run) if isinstance(run, Mapping) else run

    @property
    def subject(self) -> tuple[str, str]:
        """Experiment and lab; of a trace also its program."""
        return subject(self.run)


class Baseline(Record):
    """The file."""

    format: Annotated[int, Field(ge=1, le=FORMAT)]
    experiments: Annotated[tuple[KeptRuns, ...], Field(min_length=1)]


def subject(run: Run) -> tuple[str, str]:
    """What runs must have in common to be held against each other: experiment and lab, and the program of a trace."""
    return run.experiment, " ".join(run.params.get("program", ())) if isinstance(run, TraceRun) else run.lab


def baseline_of(runs: Iterable[Measured]) -> Baseline:
    """The runs as a baseline.

    Raises:
        BadInput: none, several machines, or different parameters.
    """
    kept = [_kept(of_subject) for of_subject in grouped(list(runs), lambda run: subject(run.run)).values()]
    if not kept:
        raise BadInput("a baseline needs at least one run")
    return Baseline(format=FORMAT, experiments=tuple(kept))


def _kept(runs: Sequence[Measured]) -> KeptRuns:
    first = runs[0].run
    for run in (measured.run for measured in runs):
        if not machine_keys([first], [run]).is_one_machine:
            raise BadInput(f"a baseline is of one machine, and {first.id} and {run.id} are of two")
        if isinstance(run, ExperimentRun) and run.params != first.params:
            raise BadInput(f"the runs of a baseline have the same parameters, and {first.id} and {run.id} have not")
    flat = [(number, cell) for number, measured in enumerate(flattened(runs)) for cell in measured.cells]
    cells = grouped(flat, lambda item: (type(item[1]), _labels(item[1])))
    bare = {"progress", "process", "observations", "verdict", "figure", "attachments", "notes", "recording"}
    return KeptRuns(
        runs=tuple(measured.run.id for measured in runs),
        run=parse_run(first.model_dump(exclude=bare)),
        cells=tuple(
            KeptCell(
                kind=kind.__name__,
                labels=dict(zip(labels_of(kind), labels, strict=True)),
                figures=dict(_figures(kind, dict(group), len(runs))),
            )
            for (kind, labels), group in cells.items()
        ),
    )


def _figures(kind: type, cells: Mapping[int, Any], runs: int) -> Iterator[tuple[str, KeptFigure]]:
    for name, value in values_of(kind).items():
        known = {number: figure for number, cell in cells.items() if (figure := getattr(cell, name)) is not None}
        if not known:
            continue
        medians = [figure.median for figure in known.values()]
        middle = median(medians)
        yield (
            name,
            KeptFigure(
                median=_short(middle),
                unit=value.unit,
                spread=_short((max(medians) - min(medians)) / abs(middle)) if middle else 0.0,
                runs=tuple(_kept_sample(known.get(number)) for number in range(runs)),
            ),
        )


def _kept_sample(figure: Summary | None) -> tuple[float, float | None] | None:
    """What is exact is kept whole."""
    if figure is None:
        return None
    if not figure.uncertainty:
        return figure.median, 0.0
    return _short(figure.median), _short(figure.uncertainty) if math.isfinite(figure.uncertainty) else None


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


# As runs again


def sides(kept: KeptRuns, runs: Sequence[Measured]) -> tuple[Side, Side]:
    """Both sides of a comparison.

    Raises:
        BadInput: no cell of the baseline is one of the runs'.
    """
    now = flattened(runs)
    kinds = {type(cell).__name__: type(cell) for run in now for cell in run.cells}
    old = [
        Measured(kept.run.model_copy(update={"id": run_id}), list(_cells(kept, number, kinds)))
        for number, run_id in enumerate(kept.runs)
    ]
    there, here = ({(type(cell), _labels(cell)) for run in side for cell in run.cells} for side in (old, now))
    if not there & here:
        raise BadInput(f"no cell of {kept.run.experiment} is in the baseline and in the runs; write the baseline anew")
    return Side("baseline", old), Side("now", now)


def _cells(kept: KeptRuns, number: int, kinds: Mapping[str, type]) -> Iterator[Any]:
    """The cells of one run of the baseline, as far as its classes are known."""
    for cell in kept.cells:
        kind = kinds.get(cell.kind)
        if kind is None or cell.labels.keys() != labels_of(kind).keys():
            continue
        figures = {name: _figure(cell.figures.get(name), number) for name in values_of(kind)}
        if any(figures.values()):
            yield kind(**cell.labels, **figures)


def _figure(figure: KeptFigure | None, number: int) -> Summary | None:
    sample = figure.runs[number] if figure and number < len(figure.runs) else None
    return None if sample is None else _summary(sample[0], math.inf if sample[1] is None else sample[1])


def _summary(value: float, off: float) -> Summary:
    return Summary(1, value, value, value, None, off)


def flattened(runs: Sequence[Measured]) -> list[Measured]:
    """The same runs; their cells have plain labels, the figures that are compared, and nothing else."""
    kinds = grouped([cell for run in runs for cell in run.cells], type)
    flat = {kind: _Flat.of(kind, cells) for kind, cells in kinds.items()}
    return [replace(run, cells=[flat[type(cell)].cell(cell) for cell in run.cells]) for run in runs]


@dataclass(frozen=True)
class _Flat:
    """How cells of a class are flattened.

    Attributes:
        kind: the class of what they become.
        labels: of the class that they have.
        values: name of a figure → the field that knows its ±.
    """

    kind: type
    labels: Mapping[str, Label]
    values: Mapping[str, str]

    @classmethod
    def of(cls, kind: type, cells: Sequence[Any]) -> _Flat:
        labels, values = labels_of(kind), compared_values(kind, cells)
        marks: dict[str, Label | Value] = {
            name: replace(mark, words=_words(name, mark, cells)) for name, mark in labels.items()
        }
        marks |= {name: value for name, (value, _) in values.items()}
        made = make_dataclass(kind.__name__, [(name, Annotated[Any, mark]) for name, mark in marks.items()])
        return cls(made, labels, {name: said for name, (_, said) in values.items()})

    def cell(self, cell: Any) -> Any:
        """One of them."""
        samples = {name: sample_of(cell, name, said) for name, said in self.values.items()}
        return self.kind(
            **{name: plain_label(mark, getattr(cell, name)) for name, mark in self.labels.items()},
            **{name: sample and _summary(*sample) for name, sample in samples.items()},
        )


def _words(name: str, mark: Label, cells: Sequence[Any]) -> Any:
    """Plain label → its words, where it has words of its own; one that these cells have not stands for itself."""
    if mark.words is None:
        return None
    known = {
        plain_label(mark, label): label_text(mark, label) for label in {getattr(cell, name): None for cell in cells}
    }
    return lambda label: known.get(label, label)


def _labels(cell: Any) -> tuple[Any, ...]:
    return tuple(getattr(cell, name) for name in labels_of(type(cell)))
