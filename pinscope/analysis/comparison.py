"""Runs against other runs: what differs in the machines, which cells are better or worse, which findings came and went.

Cells are any objects of a class that declares labels and values (:mod:`pinscope.analysis.cells`): those of experiments,
the lines of a trace, the holders of a timeline. They are matched by their labels. :mod:`pinscope.analysis.between_runs`
has the statistics.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, geometric_mean, median
from typing import Any, Literal

from pinscope.analysis.between_runs import FALSE_SHARE, LEAST_CELLS, NO_RATIO, Difference, Sample, differences
from pinscope.analysis.cell_tables import CellTable, cell_tables
from pinscope.analysis.cells import NO_LABEL, Label, Value
from pinscope.analysis.machine_keys import MachineKey, MachineKeys, machine_keys
from pinscope.analysis.read_rows import grouped
from pinscope.analysis.statistics import Summary
from pinscope.analysis.texts import fits, on_lab
from pinscope.errors import BadInput
from pinscope.records.run import LAB_TITLES, Finding, Run
from pinscope.text import quoted
from pinscope.units import format_change

CellVerdict = Literal["better", "worse", "same", "unknown"]
"""Of the second side against the first. ``same``: the runs do not tell them apart. ``unknown``: nothing says how far
the ratio may be off, as of what was measured once."""
SIGNS: Mapping[CellVerdict, str] = {"better": "▲", "worse": "▼", "same": "~", "unknown": "?"}
"""Verdict → its sign; a word always stands beside it."""
TIMED = ("seconds", "bytes/second")
SPEED: Mapping[CellVerdict, str] = {"worse": "slower", "better": "faster"}
"""What differs, and the words for it in figures of these units."""
COUNTED = ("bytes", "count")
"""Units of what is counted, not timed: there 0 is nothing, and any more is different."""
MOST_CONDITIONS = 3
"""By which a group of cells is named."""
MOST_VALUES = 40
"""Labels with more different ones name no group."""
FEW = 3
"""Fewer cells are no group: they are named themselves."""
MOST_NAME = 24
"""Characters of a run's name in a sentence."""
MOSTLY = 0.5
"""A group is named by conditions where at least this share of it and of what differs are the same cells."""


@dataclass(frozen=True)
class Measured:
    """A run, its cells and its findings."""

    run: Run
    cells: Sequence[Any]
    findings: Sequence[Finding] = ()


@dataclass(frozen=True)
class Side:
    """Runs that are taken as one, and what they are called."""

    name: str
    runs: Sequence[Measured]


@dataclass(frozen=True)
class Pooled:
    """A figure of one side.

    Attributes:
        value: the geometric mean of its runs'.
        runs: of how many.
        spread: what stands after its ±, relative: of one run its own, of several the farthest from the mean;
            ``None`` where nothing may.
    """

    value: float
    runs: int
    spread: float | None


@dataclass(frozen=True)
class CellFigure:
    """A figure of a cell.

    Attributes:
        kind: name of the class of cells.
        marks: name → what the label is; ``labels``: the label itself, plain.
        texts: name → its words; a label that all cells share is not among them.
        figure: name of the value.
        value: what it is.
        is_first: whether it stands for the cell: others are seen where they alone differ.
    """

    kind: str
    marks: Mapping[str, Label]
    labels: Mapping[str, Any]
    texts: Mapping[str, str]
    figure: str
    value: Value
    is_first: bool

    @property
    def key(self) -> tuple[Any, ...]:
        """By which cells are matched."""
        return self.kind, *self.labels.values()

    @property
    def words(self) -> str:
        """Its labels in words."""
        return ", ".join(self.texts.values()) or "all"

    @property
    def full_words(self) -> str:
        """Its labels, and what it is."""
        return ", ".join([*self.texts.values(), self.value.title])


@dataclass(frozen=True)
class ComparedCell(CellFigure, Difference):
    """A figure of a cell on both sides; its interval is as wide as the number of cells asks for.

    Attributes:
        a, b: the figure on each side.
        verdict: of the second side.
    """

    a: Pooled
    b: Pooled
    verdict: CellVerdict

    @property
    def interval_words(self) -> str:
        """``-4.1 to -1.9 %``; empty where none is known, or it is exact."""
        if not (self.low and self.high and self.low < self.high):
            return ""
        low, high = format_change(self.low, self.ratio), format_change(self.high, self.ratio)
        return f"{low.removesuffix(' %') if high.endswith('%') else low} to {high}"

    @property
    def verdict_words(self) -> str:
        """``▼ slower`` of a time or a rate, else ``▼ worse``."""
        words = SPEED if self.value.unit in TIMED else {}
        return f"{SIGNS[self.verdict]} {words.get(self.verdict, self.verdict)}"

    @property
    def gain(self) -> float:
        """How many times as good: above 1 better, whichever direction that has."""
        if self.ratio is None:
            return math.inf if (self.b.value > self.a.value) == (self.value.better == "more") else 0.0
        return self.ratio if self.value.better == "more" else 1 / self.ratio

    @property
    def differs(self) -> bool:
        """Whether it is better or worse: also what has no interval, from nothing to something."""
        return self.verdict in SPEED

    @property
    def least_change(self) -> float:
        """By how much a figure that differs does at least, relative: how far its whole interval lies from 1; infinite
        from nothing to something."""
        if self.ratio is None:
            return math.inf
        return min(abs((end or self.ratio) - 1) for end in (self.low, self.high))


@dataclass(frozen=True)
class LoneCell(CellFigure):
    """The first known figure of a cell that one side only has: the second where ``is_new``; ``amount``: what it is."""

    is_new: bool
    amount: float


@dataclass(frozen=True)
class Group:
    """Cells that differ in one direction and have labels in common.

    Attributes:
        verdict: ``better`` or ``worse``.
        conditions: what a label is, or from where on, in words; none where they share nothing.
        cells: those that differ, the farthest first.
        of: how many the conditions name, with those that do not differ.
    """

    verdict: CellVerdict
    conditions: Sequence[str]
    cells: Sequence[ComparedCell]
    of: int

    @property
    def change(self) -> float:
        """By which its figures differ (relative, the median); infinite from nothing to something."""
        return median(math.inf if cell.ratio is None else abs(cell.ratio - 1) for cell in self.cells)

    @property
    def word(self) -> str:
        """``slower``, of figures that are timed; else ``worse``."""
        return SPEED[self.verdict] if all(cell.value.unit in TIMED for cell in self.cells) else self.verdict

    @property
    def brief(self) -> str:
        """``slower by 3.0 % in 34``."""
        change = f" by {change_words(self.change)}" if math.isfinite(self.change) else ""
        return f"{self.word}{change} in {len(self.cells)}"

    @property
    def words(self) -> str:
        """``slower by 3.0 % in 34 of 36 cells: pinned, size from 1 MiB on``."""
        most = "" if len(self.cells) == 1 else "most in "
        which = ", ".join(self.conditions) or f"{most}{self.cells[0].words}"
        return f"{self.brief} of {self.of} cells: {which}"


@dataclass(frozen=True)
class Comparison:
    """The second side against the first.

    Attributes:
        experiment: of all runs.
        a, b: the sides.
        machines: what differs in the machines and the software, what is the same, and what one side did not record.
        settings: parameters of the runs that differ.
        cells: matched; all figures, what costs most first.
        alone: cells of one side only.
        findings: those that ``went`` and ``came``: all runs of one side have them, and none of the other.
    """

    experiment: str
    a: Side
    b: Side
    machines: MachineKeys
    settings: Sequence[MachineKey]
    cells: Sequence[ComparedCell]
    alone: Sequence[LoneCell]
    findings: Mapping[Literal["went", "came"], Sequence[Finding]]

    @cached_property
    def called(self) -> tuple[str, str]:
        """The sides as a sentence calls them: by the name of their runs, their GPU or their host, where it tells them
        apart; else by their letter."""
        return _called(self.a, self.b), _called(self.b, self.a)

    @cached_property
    def firsts(self) -> list[ComparedCell]:
        """The figures that stand for their cells."""
        return [cell for cell in self.cells if cell.is_first]

    @cached_property
    def shown(self) -> list[ComparedCell]:
        """What differs; of a cell whose first figure differs, that alone."""
        firsts = {cell.key: cell.verdict for cell in self.firsts}
        return [cell for cell in self.cells if cell.differs and (cell.is_first or firsts.get(cell.key) != cell.verdict)]

    @cached_property
    def counts(self) -> Counter[CellVerdict]:
        """Cells by the verdict of their first figure."""
        return Counter(cell.verdict for cell in self.firsts)

    @property
    def whole(self) -> ComparedCell | None:
        """The first figure of what has no labels: of the program of a trace, of the host of a timeline."""
        return next((cell for cell in self.firsts if not cell.labels), None)

    def causes(self, whole: ComparedCell) -> list[tuple[float, ComparedCell | LoneCell]]:
        """By how much the first figures of other cells changed that are not the same and go the way of the whole, the
        farthest first; what one side alone has, from nothing or to nothing."""
        is_more = whole.b.value > whole.a.value
        changes: list[tuple[float, ComparedCell | LoneCell]] = [
            *((cell.b.value - cell.a.value, cell) for cell in self.firsts if cell.verdict != "same"),
            *((cell.amount if cell.is_new else -cell.amount, cell) for cell in self.alone),
        ]
        changes.sort(key=lambda change: -abs(change[0]))
        return [(by, cell) for by, cell in changes if cell.labels and (by > 0) == is_more]

    @property
    def alone_counts(self) -> tuple[int, int]:
        """Cells that the first side alone has, and the second."""
        new = sum(cell.is_new for cell in self.alone)
        return len(self.alone) - new, new

    @cached_property
    def mean_gain(self) -> float | None:
        """Of how many times as good the second side is, over all cells; ``None`` without any."""
        gains = [cell.gain for cell in self.firsts if cell.ratio]
        return geometric_mean(gains) if gains else None

    @cached_property
    def tellable(self) -> float | None:
        """A difference of so much would have been seen in half of the cells (relative); ``None`` without any."""
        reach = [math.sqrt(cell.high / cell.low) - 1 for cell in self.firsts if cell.low and cell.high]
        return median(reach) if reach else None

    @cached_property
    def groups(self) -> list[Group]:
        """What is worse, then what is better: each named by the labels that fit it best."""
        return [group for verdict in SPEED if (group := group_of(self.firsts, verdict))]


def compare(
    a: Side, b: Side, false_share: float = FALSE_SHARE, tables: Sequence[CellTable] | None = None
) -> Comparison:
    """The second side against the first.

    Args:
        a, b: the sides.
        false_share: of the cells that are called different, as many are expected to be so by chance.
        tables: the cells of their runs, where those of the first side are known from a baseline.

    Raises:
        BadInput: a side without runs, of several experiments, or the host model against a GPU.
    """
    runs = [measured.run for side in (a, b) for measured in side.runs]
    if not (a.runs and b.runs):
        raise BadInput(f"{(b if a.runs else a).name} has no run that can be compared")
    if len(experiments := list(dict.fromkeys(run.experiment for run in runs))) > 1:
        raise BadInput(f"runs of one experiment are compared, and these are of {' and '.join(experiments)}")
    if len(labs := list(dict.fromkeys(run.lab for run in runs))) > 1:
        titles = " and ".join(LAB_TITLES[lab] for lab in labs)
        raise BadInput(f"{titles} cannot be compared: the host model's figures describe no GPU")
    tables = tables or cell_tables([measured.cells for side in (a, b) for measured in side.runs])
    given = [given for table in tables for given in _given(table, len(a.runs))]
    compared = _compared([item for item in given if all(item[1:])], false_share)
    return Comparison(
        experiment=runs[0].experiment,
        a=a,
        b=b,
        machines=machine_keys([run.run for run in a.runs], [run.run for run in b.runs]),
        settings=list(_settings(a, b)),
        cells=sorted(compared, key=lambda cell: (cell.gain, not cell.is_first)),
        alone=[
            LoneCell(**vars(of), is_new=not first, amount=_pooled(first or second).value)
            for of, first, second in given
            if not (first and second)
        ],
        findings={"went": _findings_only(a, b), "came": _findings_only(b, a)},
    )


def verdict(comparison: Comparison) -> str:
    """One sentence: what is worse and better, or how small a difference would have been seen."""
    lab, name = comparison.b.runs[0].run.lab, comparison.called[1]
    if groups := comparison.groups:
        first, *others = groups
        brief = f"{' and '.join(group.brief for group in groups)} of {len(comparison.firsts):,} cells"
        sayings = [
            "; ".join(group.words for group in groups),
            "; ".join([first.words, *(f"{group.word} in {len(group.cells)}" for group in others)]),
            *(f"{brief}, only {words}" for words in _in_common([cell for group in groups for cell in group.cells])),
            brief,
        ]
        sentences = [f"{name} is {words}." for words in (sayings[:2] if first.conditions or not others else sayings)]
        sentence = next(filter(fits, sentences), sentences[-1])
    elif not comparison.cells:
        sentence = "No cell is on both sides: nothing can be compared."
    elif comparison.tellable is None:
        sentence = "Not known: each cell was measured once. Take several runs a side."
    else:
        count = comparison.counts["same"]
        same = f"No difference: {count:,} cell{' is' if count == 1 else 's are'} the same"
        sentence = f"{same}; {change_words(comparison.tellable)} would show in half of them."
        if comparison.shown:
            sentence = f"{same} but for {len(comparison.shown)} further figures."
    return on_lab("host" if lab == "host" else "cuda", sentence)


def _in_common(cells: Sequence[ComparedCell]) -> Iterator[str]:
    """The labels that all of them have, in words; then fewer, the first ones."""
    alike = [text for name, text in cells[0].texts.items() if all(cell.texts.get(name) == text for cell in cells)]
    return (", ".join(alike[:count]) for count in range(len(alike), 0, -1))


def _called(own: Side, other: Side) -> str:
    for words in (_name, _gpu, lambda run: run.environment.host):
        ours, theirs = ({words(measured.run) for measured in side.runs} for side in (own, other))
        if len(ours) == 1 and not ours & theirs and (called := ours.pop()):
            return called
    return own.name


def _name(run: Run) -> str | None:
    return quoted(run.name) if run.name and len(run.name) <= MOST_NAME else None


def _gpu(run: Run) -> str | None:
    """``H100`` of an ``NVIDIA H100 80GB HBM3``."""
    return re.sub(r"^NVIDIA | \d+GB\b.*", "", run.gpu.name) if run.gpu else None


def change_words(change: float) -> str:
    """``3.0 %``, ``23 %``, or ``4.4 times`` of what is more than double."""
    if change >= 1:
        times = float(f"{1 + change:.2g}")
        return f"{times:,.0f} times" if times >= 10 else f"{times:g} times"
    return f"{change * 100:.{1 if change < 0.0995 else 0}f} %"


def exact(value: float) -> Summary:
    """What was counted, not timed: another reading of the same would give the same."""
    return Summary(1, value, value, value, (value, value), 0.0)


def _settings(a: Side, b: Side) -> Iterator[MachineKey]:
    for name in dict.fromkeys(name for side in (a, b) for measured in side.runs for name in measured.run.params):
        both = [dict.fromkeys(str(measured.run.params.get(name, "–")) for measured in side.runs) for side in (a, b)]
        if both[0].keys() != both[1].keys():
            yield MachineKey(name, f"parameter {name}", *map(" | ".join, both))


def _findings_only(side: Side, other: Side) -> list[Finding]:
    """Findings of all runs of a side and of none of the other."""
    own = [{finding.rule: finding for finding in run.findings} for run in side.runs]
    others = {finding.rule for run in other.runs for finding in run.findings}
    return [finding for rule, finding in own[0].items() if all(rule in run for run in own) and rule not in others]


_Given = tuple[CellFigure, Sequence[Sample], Sequence[Sample]]
"""A figure of a cell, and what the runs of each side say of it."""


def _given(table: CellTable, count: int) -> Iterator[_Given]:
    """Of a cell that both sides have each figure that both know, of others the first. ``count``: so many of the runs
    are those of the first side."""
    names = list(table.labels)
    varied = [at for at in range(len(names)) if len({key[at] for key in table.texts}) > 1] or range(len(names))
    for key, said in table.texts.items():
        sides = [[run[key] for run in runs if key in run] for runs in (table.runs[:count], table.runs[count:])]
        labels = dict(zip(names, key, strict=True))
        texts = {names[at]: said[at] for at in varied if said[at] != NO_LABEL}
        is_first = True
        for name, value in table.values.items():
            a, b = ([run[name] for run in runs if name in run] for runs in sides)
            if (a and b) if all(sides) else (a or b) and is_first:
                yield CellFigure(table.kind, table.labels, labels, texts, name, value, is_first), a, b
                is_first = False


def _compared(given: Sequence[_Given], false_share: float) -> Iterator[ComparedCell]:
    """Figures above 0 are told from chance in families: those of cells that share their first word, whose share of
    false alarms is their own, and which say what to expect of each other; small families are one."""
    sizes = Counter(map(_family, given))
    families = grouped(given, lambda item: _family(item) if sizes[_family(item)] >= LEAST_CELLS else _family(item)[:3])
    for (is_positive, *_), family in families.items():
        seen = differences([(a, b) for _, a, b in family], false_share) if is_positive else [NO_RATIO] * len(family)
        for (of, a, b), difference in zip(family, seen, strict=True):
            yield _compared_cell(of, _pooled(a), _pooled(b), difference)


def _family(given: _Given) -> tuple[Any, ...]:
    of, *sides = given
    is_positive = all(value > 0 for side in sides for value, _ in side)
    return is_positive, of.kind, of.figure, next(iter(of.texts.values()), "")


def _compared_cell(of: CellFigure, a: Pooled, b: Pooled, seen: Difference) -> ComparedCell:
    verdict: CellVerdict = "better" if (b.value > a.value) == (of.value.better == "more") else "worse"
    if a.value == b.value or (seen.low is not None and not seen.differs):
        verdict = "same"
    elif not (seen.differs or (of.value.unit in COUNTED and min(a.value, b.value) == 0)):
        verdict = "unknown"
    return ComparedCell(**vars(of), **vars(seen), a=a, b=b, verdict=verdict)


def _pooled(samples: Sequence[Sample]) -> Pooled:
    values = [value for value, _ in samples]
    mean = geometric_mean(values) if min(values) > 0 else fmean(values)
    if len(samples) == 1:
        return Pooled(mean, 1, samples[0][1] if 0 < samples[0][1] <= 1 else None)
    return Pooled(mean, len(values), max(abs(value / mean - 1) for value in values) if mean else None)


# Naming what differs


def group_of(cells: Sequence[ComparedCell], verdict: CellVerdict) -> Group | None:
    """The cells of that verdict, and the conditions that fit them best; ``None`` without any.

    Conditions are added one by one, as long as the cells that they name and those that differ have more in common
    (Jaccard index).
    """
    wanted = {place for place, cell in enumerate(cells) if cell.verdict == verdict}
    if not wanted:
        return None
    named, chosen, free = set(range(len(cells))), list[str](), dict(_conditions(cells))
    while free and len(chosen) < MOST_CONDITIONS:
        name, words = max(free, key=lambda condition: _alike(named & free[condition], wanted))
        narrower = named & free[name, words]
        if _alike(narrower, wanted) <= _alike(named, wanted) + 1e-9:
            break
        named, chosen = narrower, [*chosen, words]
        free = {condition: holds for condition, holds in free.items() if condition[0] != name}
    if len(wanted) < FEW or _alike(named, wanted) < MOSTLY:
        named, chosen = set(range(len(cells))), []
    inside = [cells[place] for place in sorted(named & wanted)]
    inside.sort(key=lambda cell: cell.gain, reverse=verdict == "better")
    return Group(verdict, chosen, inside, len(named))


def _alike(first: Set[int], second: Set[int]) -> float:
    return len(first & second) / max(len(first | second), 1)


def _conditions(cells: Sequence[ComparedCell]) -> Iterator[tuple[tuple[str, str], Set[int]]]:
    """What a label may be, by its name and in words, and the places of the cells for which that holds: a word, or a
    number from or up to one of those that there are."""
    marks = {name: mark for cell in cells for name, mark in cell.marks.items() if name in cell.texts}
    for name, mark in marks.items():
        own = {place: (cell.texts[name], cell.labels[name]) for place, cell in enumerate(cells) if name in cell.texts}
        known = dict(own.values())
        if len(known) > MOST_VALUES:
            continue
        is_number = len(known) > 2 and not any(isinstance(label, str | bool | None) for label in known.values())
        for text, label in known.items():
            words = text if mark.unit == "text" and mark.words is None else f"{mark.title} {text}"
            yield (name, words), {place for place, (said, _) in own.items() if said == text}
            if is_number:
                yield (name, f"{mark.title} from {text} on"), {place for place, (_, at) in own.items() if at >= label}
                yield (name, f"{mark.title} up to {text}"), {place for place, (_, at) in own.items() if at <= label}
