"""Whether runs are worse than a baseline: which cells fell out, and which of them still do when measured again.

A gate asks more than a comparison. What falls out, as a comparison tells it, is measured again, and blamed where the
new runs alone are worse by more than the tolerance too, and all runs together leave less to chance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, stdev
from typing import Any

from pinscope.analysis.baseline import KeptRuns, sides
from pinscope.analysis.between_runs import students
from pinscope.analysis.comparison import COUNTED, ComparedCell, Comparison, LoneCell, Measured, compare
from pinscope.errors import BadInput
from pinscope.text import quoted
from pinscope.units import format_value

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
MOST_LOG = 100.0
"""Of a change: what is greater is no number that anybody reads."""
_Key = tuple[Any, ...]
Regression = ComparedCell | LoneCell
"""What is worse: a cell as it was compared, or a line that the baseline does not have."""
Only = Mapping[str, Collection[str]]
"""Name of a label, or ``figure`` → what it may be, as :func:`parse_only` reads it."""


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

    @property
    def telling(self) -> int:
        """In how many of the cells a figure that is worse by the tolerance would show."""
        return sum(map(self.tells, self.cells))

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
    alone = _by_key(_compared(kept, more, FALSE_SHARE)) if more else {}
    blamed = [
        worse
        for key, worse in _fallen(compared, tolerance, only).items()
        if key in fallen and (not more or _is_worse(alone.get(key), tolerance))
    ]
    once = len(fallen) - len(blamed) if more else 0
    return Checked(compared, _chosen(compared, only), blamed, once, tolerance)


def _compared(kept: KeptRuns, runs: Sequence[Measured], false_share: float) -> Comparison:
    before, now, tables = sides(kept, runs)
    return compare(before, now, false_share, tables)


def _is_worse(item: Regression | None, tolerance: float) -> bool:
    """Whether a figure is worse by more than the tolerance, chance or not; a line that is new is."""
    if not isinstance(item, ComparedCell):
        return item is not None
    return item.gain < 1 and (item.ratio is None or abs(item.ratio - 1) > tolerance)


def _by_key(compared: Comparison) -> dict[_Key, Regression]:
    items: list[Regression] = [*compared.cells, *compared.alone]
    return {(item.figure, *item.key): item for item in items}


def _fallen(compared: Comparison, tolerance: float, only: Only | None) -> dict[_Key, Regression]:
    """What is worse by more than the tolerance; of a cell whose first figure is, that alone."""
    shown = {id(cell) for cell in compared.shown if cell.verdict == "worse"}
    whole = next((cell.a.value for cell in compared.firsts if not cell.labels and cell.value.unit == "seconds"), None)
    least = LEAST_LINE * whole if whole else 0.0

    def has_fallen(item: Regression) -> bool:
        if isinstance(item, LoneCell):
            return bool(whole) and item.is_new and item.value.unit == "seconds" and item.amount > least
        if id(item) not in shown or not _is_chosen(item, only):
            return False
        is_worth = not item.labels or item.value.unit != "seconds" or item.b.value - item.a.value >= least
        return is_worth and _is_worse(item, tolerance)

    return {key: item for key, item in _by_key(compared).items() if has_fallen(item)}


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
    only: dict[str, set[str]] = {}
    for text in texts:
        name, separator, values = text.partition("=")
        if not (separator and name.strip() and values.strip()):
            raise BadInput(f"--only takes LABEL=VALUE, such as memory=pinned or bytes=1MiB; not {quoted(text)}")
        only.setdefault(name.strip(), set()).update(map(_bare, values.split(",")))
    return only


def _bare(text: Any) -> str:
    return "".join(str(text).split()).casefold()


def _is_chosen(cell: ComparedCell, only: Only | None) -> bool:
    """Whether a cell has the labels that are asked for; labels that it does not know keep none out."""
    known: dict[str, set[str]] = {
        name: {_bare(label), _bare(cell.texts.get(name, "")), _bare(format_value(label, cell.marks[name].unit))}
        for name, label in cell.labels.items()
    }
    known["figure"] = {_bare(cell.figure), _bare(cell.value.title)}
    return all(known.get(name, set()) & set(values) for name, values in (only or {}).items())


def lacking(kept: KeptRuns, only: Only) -> list[str]:
    """Names of ``only`` that no cell of the baseline has."""
    names = {name for cell in kept.cells for name in cell.labels} | {"figure"}
    return sorted(set(only) - names)


def _chosen(compared: Comparison, only: Only | None) -> list[ComparedCell]:
    chosen = [cell for cell in compared.cells if _is_chosen(cell, only)]
    if not chosen:
        raise BadInput(f"--only leaves no cell of {compared.experiment}")
    cells: dict[_Key, ComparedCell] = {}
    for cell in sorted(chosen, key=lambda cell: not cell.is_first):
        cells.setdefault(cell.key, cell)
    return list(cells.values())


# How many runs


def deviation(kept: KeptRuns) -> float | None:
    """By how much the runs of a baseline differ: of timed figures the median standard deviation, relative; ``None`` of
    one run."""
    samples = [
        [math.log(sample[0]) for sample in figure.runs if sample and sample[0] > 0]
        for cell in kept.cells
        for figure in cell.figures.values()
        if figure.unit not in COUNTED
    ]
    known = [stdev(logs) for logs in samples if len(logs) > 1]
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
    return math.expm1(min(quantiles * spread * math.sqrt(1 / before + 1 / now), MOST_LOG))


def runs_needed(spread: float, change: float) -> int | None:
    """Runs a side, at least 2, with which :func:`least_change` is no more than a change; ``None``: too many."""
    return next((count for count in range(2, MOST_RUNS) if least_change(spread, count, count) <= change), None)
