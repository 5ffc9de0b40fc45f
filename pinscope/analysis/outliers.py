"""Which GPUs of a fleet are worse than others like them, in what, and what sets them apart.

What is usual comes from the fleet itself, as in superbenchmark, figure by figure, of GPUs with like hardware:

- A GPU has of each figure the better of the middle values of its runs: so at least half of them, and two, are as bad.
- The usual value is the median of the GPUs. How far they lie apart the better half says, in which no fault lies, at
  several depths: a fleet's tails are longer than those of a normal distribution, and its own count. Of few GPUs
  Student's t is taken.
- A GPU is a family of cells, and the fleet a family of GPUs: a GPU's chance is that at least :data:`LEAST_CELLS` of its
  cells are worse (partial conjunction: Benjamini & Heller, Biometrics 64, 2008), for every cell lies far out on some
  host; and of the GPUs blamed at most :data:`FALSE_SHARE` are expected to be so wrongly (Benjamini & Hochberg, JRSS B
  57, 1995).
- What differs by less than the tolerance of a check is no fault, however sure it is.
- What explains it is a key of its environment in which it differs from most, or a finding of its newest run that most
  have not, where most that have that value are outliers too: a kernel that half of the fleet has without harm explains
  nothing.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pinscope.analysis.check import TOLERANCE
from pinscope.analysis.comparison import ComparedCell, Comparison, Pooled, Side
from pinscope.analysis.figures import FINDING, NODE, Figure, named_figures
from pinscope.analysis.machine_keys import MachineKeys, key_title

FALSE_SHARE = 0.02
"""Of the GPUs that are blamed."""
LEAST_GROUP = 8
"""Fewer GPUs that are alike say nothing of each other."""
LEAST_CELLS = 3
"""Of a GPU, that are worse, before it is blamed; all, of an experiment with fewer."""
LEAST_RUNS = 2
"""Of a GPU, before it is blamed."""
NEWEST = 3
"""Runs of a GPU that are looked at."""
DEPTHS = ((0.25, 0.6745), (0.05, 1.6449), (0.01, 2.3263), (0.001, 3.0902))
"""Shares of the GPUs that are better by more, and the standard deviations to which that comes."""
LEAST_SPREAD = 0.001
"""Between GPUs, of any figure (relative): those of steadier ones are steady by chance."""
EXPLAINS = 0.5
"""Of the GPUs with a value, so many are outliers where it explains them."""
ALIKE = ("gpu.name", "gpu.link.kind", "gpu.link.generation_max", "gpu.link.width_max", "cpu", "driver")
"""Keys in which hardware that is compared is alike."""
LIKELY = (
    "gpu.link.width_now", "gpu.link.width_max", "gpu.link.generation_max", NODE, "gpu.numa_node", "gpu.iommu",
    "huge_pages.transparent", "huge_pages.defrag", "driver", "kernel_module", "cpu", "cpus", "kernel", "virtualization",
)  # fmt: skip
"""Keys that are said first, where several explain the same."""
TITLES = {NODE: "NUMA node of the buffers", "gpu.numa_node": "NUMA node of the GPU"}
MOST_KEYS = 3
HAS_NOT = "no"
"""What most have of a finding that few have."""
NOTHING = "nothing recorded here explains it"
Floats = NDArray[Any]


@dataclass(frozen=True)
class FleetRun:
    """A run as a fleet sees it.

    Attributes:
        run_id: the run; ``created_at``: when it began.
        machine, host: of it, as its environment says.
        gpu: its own name; empty of a run without one. ``device``: its number.
        layout, surroundings: names of texts: what the values are (:mod:`pinscope.analysis.figures`), and the keys of
            the environment that a machine shares with others, as JSON.
        tags: of the run.
        values: a figure each; NaN where there is none.
    """

    run_id: str
    created_at: datetime
    machine: str
    host: str
    gpu: str
    device: int
    layout: str
    surroundings: str
    tags: tuple[str, ...]
    values: NDArray[np.float32]


@dataclass(frozen=True)
class Gpu:
    """One GPU, or a machine without one.

    Attributes:
        host, gpu, device: as of :class:`FleetRun`.
        tags: of its newest run.
        runs: ids, the newest first.
        group: number of those that it is held against.
        facts: of its surroundings.
    """

    host: str
    gpu: str
    device: int
    tags: tuple[str, ...]
    runs: tuple[str, ...]
    group: int
    facts: Mapping[str, str]

    @property
    def words(self) -> str:
        """Its host, and its number there."""
        return f"{self.host} GPU {self.device}" if self.gpu else self.host

    def label(self, name: str) -> str | None:
        """What stands behind ``name=`` in its tags, or such a key of its surroundings."""
        if name == "host":
            return self.host
        tagged = (tag.removeprefix(f"{name}=") for tag in self.tags if tag.startswith(f"{name}="))
        return next(tagged, self.facts.get(name))


@dataclass(frozen=True)
class Outlier:
    """A GPU that is worse than others like it.

    Attributes:
        place: of the GPU in the fleet; ``gpu``: it.
        figures: places of the figures that are worse, the worst first.
        change: by which that is worse (relative).
        words: what is worse, by how much.
        why: key, what it has there, and what others have; none: nothing explains it.
        chance: that an ordinary GPU looks so.
    """

    place: int
    gpu: Gpu
    figures: Sequence[int]
    change: float
    words: str
    why: Sequence[tuple[str, str, str]]
    chance: float

    @property
    def why_words(self) -> str:
        """``PCIe lanes in use 8, others 16``."""
        said = (f"{TITLES.get(key, key_title(key))} {own}, others {usual}" for key, own, usual in self.why)
        return "; ".join(said) or NOTHING

    @property
    def line(self) -> str:
        """Which GPU, what is worse, and why."""
        return f"{self.gpu.words}: {self.words}; {self.why_words}"


@dataclass(frozen=True)
class Spread:
    """How a figure is spread over a group: least, lower quartile, median, upper quartile, most; of how many GPUs."""

    group: int
    figure: int
    quantiles: tuple[float, ...]
    gpus: int


@dataclass(frozen=True)
class Fleet:
    """The newest runs of an experiment on all GPUs, and who is worse.

    Attributes:
        experiment: of all runs; ``lab``: likewise.
        gpus: all.
        figures: their figures.
        values: a row each GPU, a column each figure: the middle value of its runs; NaN where it has none.
        worse: the same: by which it is worse than usual in its group (a logarithm; below 0: better).
        groups: what each group is, in words.
        outliers: blamed, the worst first.
        suspects: as bad, but seen in one run only.
        alone: places of the GPUs that have too few like them to be judged.
    """

    experiment: str
    lab: str
    gpus: Sequence[Gpu]
    figures: Sequence[Figure]
    values: Floats
    worse: Floats
    groups: Sequence[str]
    outliers: Sequence[Outlier]
    suspects: Sequence[Outlier]
    alone: Sequence[int]

    @cached_property
    def firsts(self) -> list[int]:
        """Places of the figures that stand for their cells."""
        return [place for place, figure in enumerate(self.figures) if figure.is_first]

    @cached_property
    def states(self) -> Mapping[int, str]:
        """Places of the GPUs that are worse, or cannot be judged: ``outlier``, ``suspect`` or ``alone``."""
        out = dict.fromkeys((outlier.place for outlier in self.outliers), "outlier")
        once = dict.fromkeys((suspect.place for suspect in self.suspects), "suspect")
        return {**dict.fromkeys(self.alone, "alone"), **once, **out}

    def spreads(self) -> list[Spread]:
        """Of the figures that stand for their cells, group by group."""
        spreads = []
        for group in range(len(self.groups)):
            rows = [place for place, gpu in enumerate(self.gpus) if gpu.group == group]
            ordered, counts = _sorted(self.values[np.ix_(rows, self.firsts)])
            quantiles = np.stack([_at(ordered, counts, share) for share in (0, 0.25, 0.5, 0.75, 1)], axis=1)
            spreads += [
                Spread(group, place, tuple(map(float, quantiles[column])), int(counts[column]))
                for column, place in enumerate(self.firsts)
                if counts[column]
            ]
        return spreads

    def by_label(self, name: str) -> tuple[list[str], Floats]:
        """What the label may be; of each the median of by how much its GPUs are worse, in :attr:`firsts`."""
        labels = [gpu.label(name) for gpu in self.gpus]
        rows: dict[str, list[int]] = {}
        for place, label in enumerate(labels):
            if label is not None:
                rows.setdefault(label, []).append(place)
        known = sorted(rows, key=_natural)
        worse = self.worse[:, self.firsts]
        with np.errstate(all="ignore"):
            medians = [_median(worse[rows[label]]) for label in known]
        return known, np.array(medians).reshape(len(known), len(self.firsts))


def _natural(text: str) -> tuple[tuple[int, Any], ...]:
    """r9 before r10."""
    parts = "".join(sign if sign.isdigit() else f" {sign} " for sign in text).split()
    return tuple((0, int(part)) if part.isdecimal() else (1, part) for part in parts)


def fleet_of(experiment: str, lab: str, runs: Sequence[FleetRun], texts: Mapping[str, str]) -> Fleet:
    """The fleet.

    Args:
        experiment, lab: of the runs.
        runs: of each GPU the newest, in any order.
        texts: what their layouts and surroundings are, by name.
    """
    of_gpu = attrgetter("host", "machine", "device", "gpu")
    ordered = sorted(sorted(runs, key=attrgetter("created_at"), reverse=True), key=of_gpu)
    figures, columns = _columns({run.layout for run in ordered}, texts)
    ordered = [run for run in ordered if run.layout in columns and len(run.values) == len(columns[run.layout])]
    if not ordered:
        nothing = np.empty((0, 0), np.float32)
        return Fleet(experiment, lab, [], [], nothing, nothing, [], [], [], [])
    facts = {name: json.loads(texts.get(name, "{}")) for name in {run.surroundings for run in ordered}}
    by_gpu = [list(own) for _, own in groupby(ordered, of_gpu)]
    logs = _logs(by_gpu, figures, columns)
    alike = [facts[newest.surroundings] for newest, *_ in by_gpu]
    numbers, names, alone = _groups(alike)
    gpus = [
        Gpu(own[0].host, own[0].gpu, own[0].device, own[0].tags, tuple(run.run_id for run in own), number, known)
        for own, number, known in zip(by_gpu, numbers, alike, strict=True)
    ]
    signs = np.array([-1 if figure.value.better == "more" else 1 for figure in figures], np.float32)
    middles, steady, counts = _middles(logs, signs)
    worse = np.full(middles.shape, np.nan, np.float32)
    chances = np.ones(middles.shape)
    for number in range(len(names)):
        rows = np.flatnonzero(np.array(numbers) == number)
        usual, spread = _usual(middles[rows])
        worse[rows] = middles[rows] - usual
        if number not in alone:
            chances[rows] = _chances(steady[rows] - usual, spread, len(rows))
    cells = defaultdict[str, list[int]](list)
    for place, figure in enumerate(figures):
        cells[figure.cell].append(place)
    blamed, suspected = _blamed(chances, counts, list(cells.values()))
    judged = Fleet(
        experiment=experiment,
        lab=lab,
        gpus=gpus,
        figures=figures,
        values=np.exp(middles * signs),
        worse=worse,
        groups=names,
        outliers=(),
        suspects=(),
        alone=[place for place, number in enumerate(numbers) if number in alone],
    )
    why = _Why(gpus, set(blamed) | set(suspected))
    outliers, suspects = (
        sorted((_outlier(judged, place, chances[place], why) for place in some), key=lambda outlier: -outlier.change)
        for some in (blamed, suspected)
    )
    return replace(judged, outliers=outliers, suspects=suspects)


# Into one table


def _columns(layouts: set[str], texts: Mapping[str, str]) -> tuple[list[Figure], dict[str, list[int]]]:
    """All figures, and of each layout that can be read the place of each of its figures among them."""
    named = {layout: of for layout in sorted(layouts) if (of := named_figures(texts.get(layout, "")))}
    figures = {(figure.cell, figure.name): figure for of in named.values() for figure in of}
    places = {key: place for place, key in enumerate(figures)}
    columns = {layout: [places[figure.cell, figure.name] for figure in of] for layout, of in named.items()}
    return list(figures.values()), columns


def _logs(
    by_gpu: Sequence[Sequence[FleetRun]], figures: Sequence[Figure], columns: Mapping[str, list[int]]
) -> NDArray[np.float32]:
    """Logarithms: run, GPU, figure; NaN where there is none, or nothing above 0."""
    logs = np.full((max(map(len, by_gpu)), len(by_gpu), len(figures)), np.nan, np.float32)
    of_layout = defaultdict[str, list[tuple[int, int, Floats]]](list)
    for place, own in enumerate(by_gpu):
        for number, run in enumerate(own):
            of_layout[run.layout].append((number, place, run.values))
    for layout, some in of_layout.items():
        numbers, places, values = zip(*some, strict=True)
        known = np.full((len(some), len(figures)), np.nan, np.float32)
        known[:, columns[layout]] = values
        with np.errstate(all="ignore"):
            np.log(known, out=known)
        known[np.isinf(known)] = np.nan
        logs[list(numbers), list(places)] = known
    return logs


def _groups(alike: Sequence[Mapping[str, str]]) -> tuple[list[int], list[str], set[int]]:
    """Of each GPU the number of its group; what each group is; and those that are too small to judge anybody.

    A group of few joins the largest one with the same GPU: an odd link, processor or driver is then held against the
    ordinary ones.
    """
    keys = [tuple(facts.get(key, "–") for key in ALIKE) for facts in alike]
    sizes = Counter(keys)
    chosen = {
        key: max((other for other in sizes if other[0] == key[0]), key=lambda other: (sizes[other], other))
        if size < LEAST_GROUP
        else key
        for key, size in sizes.items()
    }
    members = Counter(chosen[key] for key in keys)
    names = [key for key, _ in members.most_common()]
    numbers = {key: number for number, key in enumerate(names)}
    words = ["; ".join(f"{key_title(name)} {text}" for name, text in zip(ALIKE, key, strict=True)) for key in names]
    small = {numbers[key] for key in names if members[key] < LEAST_GROUP}
    return [numbers[chosen[key]] for key in keys], words, small


# What is usual, and who is not


def _middles(logs: Floats, signs: Floats) -> tuple[Floats, Floats, NDArray[np.int_]]:
    """Of each GPU and figure, greater being worse: the median of its runs, the better of the middle ones, and of how
    many runs."""
    counts = np.isfinite(logs).sum(axis=0)
    bad = [np.where(np.isnan(run), np.float32(np.inf), run * signs) for run in logs]
    for last in range(len(bad) - 1, 0, -1):  # sorts run by run: few runs, many figures
        for place in range(last):
            bad[place], bad[place + 1] = np.minimum(*bad[place : place + 2]), np.maximum(*bad[place : place + 2])
    steady, other = np.full(counts.shape, np.nan, np.float32), np.full(counts.shape, np.nan, np.float32)
    for count in range(1, len(bad) + 1):
        has = counts == count
        np.copyto(steady, bad[(count - 1) // 2], where=has)
        np.copyto(other, bad[count // 2], where=has)
    return (steady + other) / 2, steady, counts


def _median(values: Floats) -> Floats:
    """Down the columns; NaN where nothing is known."""
    return _at(*_sorted(values), 0.5)


def _sorted(values: Floats) -> tuple[Floats, NDArray[np.int_]]:
    """Each column ascending, what is not known last; and how many are known."""
    return np.sort(np.ascontiguousarray(values.T), axis=1), np.isfinite(values).sum(axis=0)


def _at(ordered: Floats, counts: NDArray[np.int_], share: float) -> Floats:
    """What lies at that share of each column."""
    at = share * np.maximum(counts - 1, 0)
    columns = np.arange(len(ordered))
    return np.asarray((ordered[columns, np.floor(at).astype(int)] + ordered[columns, np.ceil(at).astype(int)]) / 2)


def _usual(middles: Floats) -> tuple[Floats, Floats]:
    """The median of each figure over the GPUs of a group, and the standard deviation that its better half shows."""
    ordered, counts = _sorted(middles)
    usual, spread = _at(ordered, counts, 0.5), np.full(middles.shape[1], LEAST_SPREAD)
    for share, deviations in DEPTHS:
        at = (usual - _at(ordered, counts, share)) / deviations
        spread = np.where((share * counts >= 2) & (at > spread), at, spread)
    return usual, spread


def _chances(apart: Floats, spread: Floats, gpus: int) -> Floats:
    """That an ordinary GPU is as much worse; 1 where that is less than the tolerance."""
    freedom = max(gpus // 3 - 1, 1)  # the better half says how far they lie apart, less well than all would
    chances = np.ones(apart.shape)
    far = np.nonzero(apart > np.maximum(2 * spread, math.log1p(TOLERANCE)).astype(apart.dtype))
    t = apart[far].astype(float) / spread[far[1]]
    # Student's t as a normal deviate (Wallace, Annals of Mathematical Statistics 30, 1959).
    z = np.sqrt(freedom * np.log1p(t**2 / freedom)) * (8 * freedom + 1) / (8 * freedom + 3)
    chances[far] = [max(math.erfc(value / math.sqrt(2)) / 2, 1e-300) for value in z]
    return chances


def _blamed(chances: Floats, counts: NDArray[np.int_], cells: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
    """Places of the GPUs that are out, and of those that are so in one run only.

    Args:
        chances: of each GPU and figure.
        counts: likewise, of how many runs.
        cells: places of the figures of each cell.
    """
    of_cells = np.stack([chances[:, figures].min(axis=1) * len(figures) for figures in cells], axis=1).clip(max=1.0)
    known = np.stack([(counts[:, figures] > 0).any(axis=1) for figures in cells], axis=1).sum(axis=1)
    together = np.ones(len(chances))
    for place in np.flatnonzero((of_cells < 1).any(axis=1)):
        least = min(LEAST_CELLS, known[place]) - 1
        some = np.sort(of_cells[place][of_cells[place] < 1])[least:]
        shares = some * (known[place] - least) / np.arange(1, len(some) + 1)
        together[place] = min(1.0, float(shares.min(initial=1.0)))
    order = np.argsort(together)
    under = np.flatnonzero(together[order] <= FALSE_SHARE * np.arange(1, len(order) + 1) / max(len(order), 1))
    out = sorted(order[: under[-1] + 1].tolist()) if len(under) else []
    often = {place for place in out if (counts[place][chances[place] < 1] >= LEAST_RUNS).any()}
    return [place for place in out if place in often], [place for place in out if place not in often]


# What is said of an outlier


class _Why:
    """What sets outliers apart from the others of their group."""

    def __init__(self, gpus: Sequence[Gpu], out: set[int]) -> None:
        self._all, self._out = defaultdict[int, Counter[tuple[str, str]]](Counter), Counter[tuple[int, str, str]]()
        shared = Counter((gpu.group, id(gpu.facts)) for gpu in gpus)
        facts = {id(gpu.facts): gpu.facts for gpu in gpus}
        for (group, name), count in shared.items():
            for item in facts[name].items():
                self._all[group][item] += count
        for place in out:
            self._out.update((gpus[place].group, *item) for item in gpus[place].facts.items())
        sizes = Counter(gpu.group for gpu in gpus)
        self._usual = defaultdict[int, dict[str, str]](dict)
        for group, counted in self._all.items():
            for (key, value), count in counted.most_common():
                is_rare = key.startswith(FINDING) and 2 * count <= sizes[group]
                self._usual[group].setdefault(key, HAS_NOT if is_rare else value)

    def of(self, gpu: Gpu) -> list[tuple[str, str, str]]:
        """Keys that explain it: key, what it has, what most have."""
        usual, counted = self._usual[gpu.group], self._all[gpu.group]
        keys = [
            (key, value, usual[key])
            for key, value in gpu.facts.items()
            if value != usual[key] and self._out[gpu.group, key, value] >= EXPLAINS * counted[key, value]
        ]
        likely = {key: place for place, key in enumerate(LIKELY)}
        rank = {key: likely.get(key, len(likely) + (not key.startswith(FINDING))) for key, *_ in keys}
        # What is like nobody else's, as an amount of memory, says nothing beside a key that is known to matter.
        known = [item for item in keys if rank[item[0]] <= len(likely)]
        return sorted(known or keys, key=lambda item: (rank[item[0]], item[0]))[:MOST_KEYS]


def _outlier(fleet: Fleet, place: int, chances: Floats, why: _Why) -> Outlier:
    known = int(np.isfinite(fleet.worse[place]).sum())
    order = np.argsort(chances)
    level = FALSE_SHARE * np.arange(1, len(order) + 1) / max(known, 1)
    under = np.flatnonzero((chances[order] <= level) & (chances[order] < 1))
    chosen = order[: under[-1] + 1] if len(under) else order[:1]
    out = sorted(map(int, chosen), key=lambda at: -fleet.worse[place, at])
    return Outlier(
        place=place,
        gpu=fleet.gpus[place],
        figures=out,
        change=math.expm1(float(fleet.worse[place, out[0]])),
        words=_what(fleet, place, set(out)),
        why=why.of(fleet.gpus[place]),
        chance=float(chances[order[0]]),
    )


def _what(fleet: Fleet, place: int, out: set[int]) -> str:
    """What is worse, as a comparison names it: of the figures that stand for their cells, or of that which most often
    is."""
    said, title = fleet.firsts, ""
    if len(out.intersection(said)) < LEAST_CELLS:
        ((name, _),) = Counter(fleet.figures[at].name for at in sorted(out)).most_common(1)
        said = [at for at, figure in enumerate(fleet.figures) if figure.name == name]
        title = f"{fleet.figures[said[0]].value.title}: "
    cells = [_compared(fleet, place, at, at in out) for at in said if np.isfinite(fleet.worse[place, at])]
    side, machines = Side(fleet.gpus[place].words, ()), MachineKeys((), {}, ())
    groups = Comparison(fleet.experiment, side, side, machines, {}, cells, (), (), ()).groups
    return f"{title}{groups[0].words}" if groups else fleet.figures[min(out)].words


def _compared(fleet: Fleet, place: int, at: int, is_out: bool) -> ComparedCell:
    figure, own = fleet.figures[at], float(fleet.values[place, at])
    sign = -1.0 if figure.value.better == "more" else 1.0
    ratio = math.exp(sign * float(fleet.worse[place, at]))
    usual, runs = Pooled(own / ratio, len(fleet.gpus), None), Pooled(own, len(fleet.gpus[place].runs), None)
    of = (figure.kind, figure.marks, figure.labels, figure.texts, figure.name, figure.value)
    return ComparedCell(*of, True, usual, runs, ratio, None, None, "worse" if is_out else "same")
