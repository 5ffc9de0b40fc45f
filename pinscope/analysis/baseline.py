"""What is kept of runs as a baseline: of each cell the figures that are compared, run by run; and these as runs again.

A file of it is reviewed and stands in version control, so that it has no rows: of each figure the median of the runs,
how far they lie apart, and each run's value with its ±, from which alone later runs are judged.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Annotated, Any

from pydantic import Field, SerializeAsAny, field_validator

from pinscope.analysis.between_runs import Sample
from pinscope.analysis.cell_tables import CellKey, CellTable, cell_tables
from pinscope.analysis.cells import NO_LABEL
from pinscope.analysis.comparison import Measured, Side
from pinscope.analysis.machine_keys import machine_keys
from pinscope.analysis.read_rows import grouped
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
    bare = {"progress", "process", "observations", "verdict", "figure", "attachments", "notes", "recording"}
    return KeptRuns(
        runs=tuple(measured.run.id for measured in runs),
        run=parse_run(first.model_dump(exclude=bare)),
        cells=tuple(
            KeptCell(kind=table.kind, labels=dict(zip(table.labels, key, strict=True)), figures=_figures(table, key))
            for table in cell_tables([measured.cells for measured in runs])
            for key in table.texts
        ),
    )


def _figures(table: CellTable, key: CellKey) -> dict[str, KeptFigure]:
    cells = [run.get(key, {}) for run in table.runs]
    figures = {name: kept_figure([cell.get(name) for cell in cells], of.unit) for name, of in table.values.items()}
    return {name: figure for name, figure in figures.items() if figure}


def kept_figure(samples: Sequence[Sample | None], unit: str) -> KeptFigure | None:
    """A figure of runs; ``None`` where none has it."""
    values = [sample[0] for sample in samples if sample]
    if not values:
        return None
    middle = median(values)
    spread = _short((max(values) - min(values)) / abs(middle)) if middle else 0.0
    return KeptFigure(median=_short(middle), unit=unit, spread=spread, runs=tuple(map(_kept_sample, samples)))


def _kept_sample(sample: Sample | None) -> tuple[float, float | None] | None:
    """What is exact is kept whole."""
    if sample is None or not sample[1]:
        return sample
    value, off = sample
    return _short(value), _short(off) if math.isfinite(off) else None


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


# As runs again


def sides(kept: KeptRuns, runs: Sequence[Measured]) -> tuple[Side, Side, list[CellTable]]:
    """Both sides of a comparison, and their cells.

    Raises:
        BadInput: no cell of the baseline is one of the runs'.
    """
    tables = [_with_baseline(table, kept) for table in cell_tables([run.cells for run in runs])]
    count = len(kept.runs)
    if not any(
        then.keys() & now.keys() for table in tables for then in table.runs[:count] for now in table.runs[count:]
    ):
        raise BadInput(f"no cell of {kept.run.experiment} is in the baseline and in the runs; write the baseline anew")
    before = [Measured(kept.run.model_copy(update={"id": run_id}), ()) for run_id in kept.runs]
    return Side("baseline", before), Side("now", runs), tables


def _with_baseline(table: CellTable, kept: KeptRuns) -> CellTable:
    """The same with the runs of the baseline before the others, as far as its class and its labels are known."""
    before: list[dict[CellKey, dict[str, Sample]]] = [{} for _ in kept.runs]
    texts = dict(table.texts)
    for cell in kept.cells:
        if cell.kind != table.kind or cell.labels.keys() != table.labels.keys():
            continue
        key = tuple(cell.labels[name] for name in table.labels)
        texts.setdefault(key, [NO_LABEL if label is None else str(label) for label in key])
        figures = {name: cell.figures[name].runs for name in table.values if name in cell.figures}
        for number, run in enumerate(before):
            samples = {name: kept_runs[number] for name, kept_runs in figures.items() if number < len(kept_runs)}
            known = {name: _sample(*sample) for name, sample in samples.items() if sample}
            if known:
                run[key] = known
    return replace(table, runs=[*before, *table.runs], texts=texts)


def _sample(value: float, off: float | None) -> Sample:
    return value, math.inf if off is None else off
