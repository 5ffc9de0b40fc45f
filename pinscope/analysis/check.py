"""A baseline of runs, and whether later runs are worse: which cells fell out, and which still do when measured again.

A file of a baseline is reviewed and stands in version control, so that it has no rows: of each figure the median of the
runs, how far they lie apart, and each run's value with its ±, from which alone later runs are judged.

A gate asks more than a comparison. What falls out, as a comparison tells it, is measured again, and blamed where the
new runs alone are worse by more than the tolerance too, and all runs together leave less to chance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median, stdev
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, SerializeAsAny

from pinscope.analysis.between_runs import Sample, students
from pinscope.analysis.cell_tables import CellKey, CellTable, cell_tables, short
from pinscope.analysis.cells import NO_LABEL
from pinscope.analysis.comparison import COUNTED, ComparedCell, Comparison, LoneCell, Measured, Side, compare
from pinscope.analysis.machine_keys import machine_keys
from pinscope.analysis.read_rows import grouped
from pinscope.errors import BadInput
from pinscope.records.base import Record
from pinscope.records.run import ExperimentRun, Run, TraceRun, parse_run
from pinscope.text import quoted
from pinscope.units import format_value

FORMAT = 1
"""Version of the file; additive changes keep it."""
SUSPECT_SHARE = 0.5
"""Of what is measured again, as many are expected to have fallen out by chance: nothing is blamed for it yet, and what
does not fall out is not looked at again."""
FALSE_SHARE = 0.005
"""Of what is blamed. A cell has several figures, whose chances add up: of checks of equal runs 1 in 100 fails."""
TOLERANCE = 0.05
"""A figure that is worse by less (relative) is no regression, unless somebody says otherwise: runs of one hour do not
show what a machine differs by from day to day."""
LEAST_LINE = 0.01
"""Of the time of a whole program: a line of it that costs less more is no regression."""
POWER = 0.9
"""In so many checks a change is to show with as many runs as :func:`runs_needed` says."""
MOST_RUNS = 1000
Regression = ComparedCell | LoneCell
"""What is worse: a cell as it was compared, or a line that the baseline does not have."""
Only = Mapping[str, Collection[str]]
"""Name of a label, or ``figure`` → what it may be, as :func:`parse_only` reads it."""


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
    run: Annotated[SerializeAsAny[Run], BeforeValidator(lambda run: run if isinstance(run, Run) else parse_run(run))]
    """The first of them: parameters, environment."""
    cells: tuple[KeptCell, ...]


class Baseline(Record):
    """The file."""

    format: Annotated[int, Field(ge=1, le=FORMAT)]
    experiments: Annotated[tuple[KeptRuns, ...], Field(min_length=1)]


def subject(run: Run) -> tuple[str, str]:
    """What runs must have in common to be held against each other: experiment and lab, and the program of a trace."""
    return run.experiment, " ".join(run.params.get("program", ())) if isinstance(run, TraceRun) else run.lab


def baseline_of(runs: Iterable[Measured], one_machine: bool = True) -> Baseline:
    """The runs as a baseline.

    Raises:
        BadInput: none, several machines where they must be of one, or different parameters.
    """
    kept = [_kept(of_subject, one_machine) for of_subject in grouped(list(runs), lambda run: subject(run.run)).values()]
    if not kept:
        raise BadInput("a baseline needs runs: name experiments, or give --runs or --trace")
    return Baseline(format=FORMAT, experiments=tuple(kept))


def _kept(runs: Sequence[Measured], one_machine: bool) -> KeptRuns:
    first = runs[0].run
    for run in (measured.run for measured in runs):
        if one_machine and not machine_keys([first], [run]).is_one_machine:
            raise BadInput(f"a baseline is of one machine, and {first.id} and {run.id} are of two")
        if isinstance(run, ExperimentRun) and run.params != first.params:
            raise BadInput(f"the runs of a baseline have the same parameters, and {first.id} and {run.id} have not")
    bare = {"progress", "process", "observations", "verdict", "figure", "attachments", "notes", "recording"}
    tables = cell_tables([measured.cells for measured in runs])
    cells = tuple(_kept_cell(table, key) for table in tables for key in table.texts)
    ids = tuple(measured.run.id for measured in runs)
    return KeptRuns(runs=ids, run=parse_run(first.model_dump(exclude=bare)), cells=cells)


def _kept_cell(table: CellTable, key: CellKey) -> KeptCell:
    known = [run.get(key, {}) for run in table.runs]
    figures = {
        name: _kept_figure([cell.get(name) for cell in known], value.unit)
        for name, value in table.values.items()
        if any(name in cell for cell in known)
    }
    return KeptCell(kind=table.kind, labels=dict(zip(table.labels, key, strict=True)), figures=figures)


def _kept_figure(samples: Sequence[Sample | None], unit: str) -> KeptFigure:
    values = [sample[0] for sample in samples if sample]
    middle = median(values)
    spread = short((max(values) - min(values)) / abs(middle)) if middle else 0.0
    return KeptFigure(median=short(middle), unit=unit, spread=spread, runs=tuple(map(_kept_sample, samples)))


def _kept_sample(sample: Sample | None) -> tuple[float, float | None] | None:
    """What is exact is kept whole."""
    if sample is None or not sample[1]:
        return sample
    value, off = sample
    return short(value), short(off) if math.isfinite(off) else None


def _compared(kept: KeptRuns, runs: Sequence[Measured], false_share: float) -> Comparison:
    """Runs against the baseline."""
    tables = [_with_baseline(table, kept) for table in cell_tables([run.cells for run in runs])]
    before = [Measured(kept.run.model_copy(update={"id": run_id}), ()) for run_id in kept.runs]
    return compare(Side("baseline", before), Side("now", runs), false_share, tables)


def _with_baseline(table: CellTable, kept: KeptRuns) -> CellTable:
    """The same with the runs of the baseline before the others, as far as its class and its labels are known."""
    before: list[dict[CellKey, dict[str, Sample]]] = [{} for _ in kept.runs]
    texts = dict(table.texts)
    for cell in kept.cells:
        if cell.kind != table.kind or cell.labels.keys() != table.labels.keys():
            continue
        key = tuple(cell.labels[name] for name in table.labels)
        texts.setdefault(key, [NO_LABEL if label is None else str(label) for label in key])
        for name, figure in cell.figures.items():
            for run, sample in zip(before, figure.runs, strict=False):
                if sample:
                    value, off = sample
                    run.setdefault(key, {})[name] = value, math.inf if off is None else off
    return replace(table, runs=[*before, *table.runs], texts=texts)


# What is worse


@dataclass(frozen=True)
class Checked:
    """Runs of one experiment, held against a baseline.

    Attributes:
        comparison: the baseline and all runs.
        cells: those that were asked for, the first figure of each.
        regressions: what is worse, what costs most first.
        once: how many cells fell out at first, and not again.
        tolerance: a difference that is no regression, relative.
    """

    comparison: Comparison
    cells: Sequence[ComparedCell]
    regressions: Sequence[Regression]
    once: int
    tolerance: float

    def tells(self, cell: ComparedCell) -> bool:
        """Whether the cell would show a figure that is worse by the tolerance."""
        return bool(cell.low and cell.high and math.sqrt(cell.high / cell.low) - 1 <= self.tolerance)


def check(
    kept: KeptRuns,
    runs: Sequence[Measured],
    make_more: Callable[[int], Sequence[Measured]] | None = None,
    tolerance: float = TOLERANCE,
    only: Only | None = None,
) -> Checked:
    """Hold runs against a baseline.

    Args:
        kept: the baseline.
        runs: what is held against it.
        make_more: makes further runs where something fell out, and is given how much. Blamed is then what is worse by
            the tolerance in these alone too, and is more than chance in all runs together.
        tolerance: a difference that is no regression, relative.
        only: the cells that count.

    Raises:
        BadInput: nothing of them is in the baseline, or ``only`` leaves nothing.
    """
    fallen = _fallen(_compared(kept, runs, SUSPECT_SHARE), tolerance, only)
    more = make_more(len(fallen)) if make_more and fallen else ()
    compared = _compared(kept, [*runs, *more], FALSE_SHARE)
    again = set(fallen)
    if more:
        alone = _compared(kept, more, FALSE_SHARE)
        items: list[Regression] = [*alone.cells, *alone.alone]
        again &= {_key(item) for item in items if _is_worse(item, tolerance)}
    blamed = [worse for key, worse in _fallen(compared, tolerance, only).items() if key in again]
    once = len(fallen) - len(blamed) if more else 0
    return Checked(compared, _chosen(compared, only), blamed, once, tolerance)


def _key(item: Regression) -> tuple[Any, ...]:
    return item.figure, *item.key


def _is_worse(item: Regression, tolerance: float) -> bool:
    """Whether a figure is worse by more than the tolerance, chance or not; a line that is new is."""
    return isinstance(item, LoneCell) or (item.gain < 1 and (item.ratio is None or abs(item.ratio - 1) > tolerance))


def _fallen(compared: Comparison, tolerance: float, only: Only | None) -> dict[tuple[Any, ...], Regression]:
    """What is worse by more than the tolerance; of a cell whose first figure is, that alone."""
    whole = compared.whole
    least = LEAST_LINE * whole.a.value if whole and whole.value.unit == "seconds" else None

    def has_fallen(item: Regression) -> bool:
        """Lines of a program only where they cost enough of its time."""
        if isinstance(item, LoneCell):
            return least is not None and item.is_new and item.value.unit == "seconds" and item.amount > least
        is_worth = not item.labels or item.value.unit != "seconds" or item.b.value - item.a.value >= (least or 0.0)
        return is_worth and item.verdict == "worse" and _is_worse(item, tolerance)

    items: list[Regression] = [*compared.shown, *compared.alone]
    return {_key(item): item for item in items if has_fallen(item) and _is_chosen(item, only)}


def regression_words(worse: Regression) -> str:
    """Both figures, and how far they differ."""
    if isinstance(worse, LoneCell):
        return f"new, costs {format_value(worse.amount, worse.value.unit)}"
    a, b = (format_value(side.value, worse.value.unit) for side in (worse.a, worse.b))
    return f"{b} instead of {a}{f' ({worse.interval_words})' if worse.interval_words else ''}"


# Which cells


def parse_only(texts: Sequence[str]) -> dict[str, set[str]]:
    """``memory=pinned,mapped`` as name → what it may be; blanks and case make no difference.

    Raises:
        BadInput: it has no ``=``.
    """
    only = dict[str, set[str]]()
    for text in texts:
        name, _, values = map(str.strip, text.partition("="))
        if not (name and values):
            raise BadInput(f"--only takes LABEL=VALUE, such as memory=pinned or bytes=1MiB; not {quoted(text)}")
        only.setdefault(name, set()).update(map(_bare, values.split(",")))
    return only


def _bare(text: str) -> str:
    return "".join(text.split()).casefold()


def _is_chosen(cell: Regression, only: Only | None) -> bool:
    """Whether a cell has the labels that are asked for; one without such a label is left out."""
    known = {"figure": {cell.figure, cell.value.title}}
    for name, label in cell.labels.items():
        known[name] = {str(label), cell.texts.get(name, ""), format_value(label, cell.marks[name].unit)}
    return all(set(values) & set(map(_bare, known.get(name, ()))) for name, values in (only or {}).items())


def lacking(kept: KeptRuns, only: Only) -> list[str]:
    """Names of ``only`` that no cell of the baseline has."""
    names = {name for cell in kept.cells for name in cell.labels} | {"figure"}
    return sorted(set(only) - names)


def _chosen(compared: Comparison, only: Only | None) -> list[ComparedCell]:
    chosen = [cell for cell in compared.cells if _is_chosen(cell, only)]
    if not chosen:
        common = f"no cell of {compared.experiment} is in the baseline and in the runs; write the baseline anew"
        raise BadInput(f"--only leaves no cell of {compared.experiment}" if compared.cells else common)
    chosen.sort(key=lambda cell: not cell.is_first)
    return [figures[0] for figures in grouped(chosen, lambda cell: cell.key).values()]


# How many runs


def deviation(kept: KeptRuns) -> float | None:
    """By how much the runs of a baseline differ: of timed figures the median standard deviation, relative; ``None`` of
    one run."""
    figures = [figure for cell in kept.cells for figure in cell.figures.values() if figure.unit not in COUNTED]
    logs = [[math.log(value) for value, _ in filter(None, figure.runs) if value > 0] for figure in figures]
    known = [stdev(of_runs) for of_runs in logs if len(of_runs) > 1]
    return median(known) if known else None


def least_change(spread: float, before: int, now: int) -> float:
    """The change that a check shows in :data:`POWER` of all cases, relative: of a group of cells that are worse alike.

    Of n and m runs with a standard deviation s between runs, a change d (of logarithms) shows where
    d ≥ (t(α, n + m - 2) + t(2 (1 - power), n + m - 2)) · s · √(1/n + 1/m), with Student's two-sided quantiles t.

    Args:
        spread: standard deviation between runs, relative.
        before, now: runs of the baseline, and of the check with those that are made again.
    """
    freedom = before + now - 2
    quantiles = students(FALSE_SHARE, freedom) + students(2 * (1 - POWER), freedom)
    return math.expm1(quantiles * spread * math.sqrt(1 / before + 1 / now))


def runs_needed(spread: float, change: float) -> int | None:
    """Runs a side, at least 2, with which :func:`least_change` is no more than a change; ``None``: too many."""
    return next((count for count in range(2, MOST_RUNS) if least_change(spread, count, count) <= change), None)
