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
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, product
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pinscope.analysis.between_runs import benjamini_hochberg
from pinscope.analysis.check import TOLERANCE
from pinscope.analysis.comparison import CellFigure, CellVerdict, ComparedCell, Pooled, group_of
from pinscope.analysis.figures import FINDING, NODE, named_figures
from pinscope.analysis.machine_keys import key_title
from pinscope.errors import BadInput
from pinscope.records.run import LAB_TITLES, LabKind

FALSE_SHARE = 0.02
"""Of the GPUs that are blamed."""
LEAST_GROUP = 8
"""Fewer GPUs that are alike, and have the figure, say nothing of each other."""
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
FLOAT = np.dtype("<f4")
"""Of a figure: six digits, which is as many as a baseline keeps."""
Floats = NDArray[Any]
Why = Sequence[tuple[str, str, str]]
"""Keys that explain an outlier: key, what it has there, and what others have."""


class FleetRun(NamedTuple):
    """A run as a fleet sees it.

    Attributes:
        run_id: the run.
        host, machine: of it, as its environment says.
        device: number of its GPU; ``gpu``: its own name, empty of a run without one.
        layout, surroundings: names of texts: what the figures are (:mod:`pinscope.analysis.figures`), and the keys of
            the environment that a machine shares with others, as JSON.
        tags: of the run, by comma.
        content: its figures, each a :data:`FLOAT`; NaN where there is none.
    """

    run_id: str
    host: str
    machine: str
    device: int
    gpu: str
    layout: str
    surroundings: str
    tags: str
    content: bytes


class Gpu(NamedTuple):
    """One GPU, or a machine without one.

    Attributes:
        newest: of its runs.
        runs: ids, the newest first.
        group: number of those that it is held against.
        facts: of its surroundings.
    """

    newest: FleetRun
    runs: Sequence[str]
    group: int
    facts: Mapping[str, str]

    @property
    def words(self) -> str:
        """Its host, and its number there."""
        return f"{self.newest.host} GPU {self.newest.device}" if self.newest.gpu else self.newest.host

    @property
    def labels(self) -> dict[str, str]:
        """Tags of its newest run that are ``name=value``."""
        return dict(tag.split("=", 1) for tag in self.newest.tags.split(",") if "=" in tag)

    def label(self, name: str) -> str | None:
        """Its label of that name, or such a key of its surroundings, or its ``host``."""
        return {**self.labels, "host": self.newest.host}.get(name, self.facts.get(name))


@dataclass(frozen=True)
class Outlier:
    """A GPU that is worse than others like it.

    Attributes:
        place: of the GPU in the fleet; ``gpu``: it.
        figures: places of the figures that are worse, the worst first.
        change: by which that is worse (relative).
        words: what is worse, by how much.
        why: what explains it; nothing does where it is empty.
        chance: that an ordinary GPU looks so.
    """

    place: int
    gpu: Gpu
    figures: Sequence[int]
    change: float
    words: str
    why: Why
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


class Spread(NamedTuple):
    """How a figure is spread over a group: least, lower quartile, median, upper quartile, most; of how many GPUs."""

    group: int
    figure: int
    quantiles: Sequence[float]
    gpus: int


@dataclass(frozen=True)
class Fleet:
    """The newest runs of an experiment on all GPUs, and who is worse.

    Attributes:
        experiment: of all runs; ``lab``: likewise.
        gpus: all.
        figures: their figures, cell by cell.
        values: a row each GPU, a column each figure: the middle value of its runs; NaN where it has none.
        worse: the same: by which it is worse than usual in its group (a logarithm; below 0: better).
        groups: what each group is, in words.
        outliers: blamed, the worst first.
        suspects: as bad, but seen in one run only.
    """

    experiment: str
    lab: LabKind
    gpus: Sequence[Gpu]
    figures: Sequence[CellFigure]
    values: Floats
    worse: Floats
    groups: Sequence[str]
    outliers: Sequence[Outlier]
    suspects: Sequence[Outlier]

    @cached_property
    def alone(self) -> list[int]:
        """Places of the GPUs that have too few like them to be judged."""
        sizes = Counter(gpu.group for gpu in self.gpus)
        return [place for place, gpu in enumerate(self.gpus) if sizes[gpu.group] < LEAST_GROUP]

    @cached_property
    def firsts(self) -> list[int]:
        """Places of the figures that stand for their cells."""
        return [place for place, figure in enumerate(self.figures) if figure.is_first]

    @cached_property
    def most_out(self) -> list[int]:
        """The same, those in which most GPUs are out first."""
        counts = Counter(at for outlier in self.outliers for at in outlier.figures)
        return sorted(self.firsts, key=lambda at: -counts[at])

    @cached_property
    def states(self) -> Mapping[int, str]:
        """Places of the GPUs that are worse, the worst first, or cannot be judged: ``outlier``, ``suspect`` or
        ``alone``."""
        judged = {"outlier": self.outliers, "suspect": self.suspects}
        worse = {outlier.place: state for state, outliers in judged.items() for outlier in outliers}
        return worse | dict.fromkeys(self.alone, "alone")

    @cached_property
    def order(self) -> list[int]:
        """Places of all GPUs, the worst first."""
        return list(dict.fromkeys([*self.states, *range(len(self.gpus))]))

    @cached_property
    def spreads(self) -> Sequence[Spread]:
        """Of the figures that stand for their cells, group by group."""
        spreads, numbers = [], np.array([gpu.group for gpu in self.gpus])
        for group in range(len(self.groups)):
            for figure in self.firsts:
                values = self.values[numbers == group, figure]
                if len(known := values[np.isfinite(values)]):
                    quantiles = np.quantile(known, (0, 0.25, 0.5, 0.75, 1), method="nearest").tolist()
                    spreads.append(Spread(group, figure, quantiles, len(known)))
        return spreads


def fleet_of(experiment: str, lab: LabKind, runs: Sequence[FleetRun], texts: Mapping[str, str]) -> Fleet:
    """The fleet.

    Args:
        experiment, lab: of the runs.
        runs: the newest of each GPU, GPU by GPU, the newest first.
        texts: what their layouts and surroundings are, by name.

    Raises:
        BadInput: none has figures that can be read.
    """
    figures, columns = _columns({run.layout for run in runs}, texts)
    sizes = {layout: FLOAT.itemsize * len(of) for layout, of in columns.items()}
    readable = (run for run in runs if len(run.content) == sizes.get(run.layout, -1))
    by_gpu = [list(own) for _, own in groupby(readable, attrgetter("host", "machine", "device", "gpu"))]
    if not by_gpu:
        raise BadInput(f"no finished run of {experiment} on {LAB_TITLES[lab]}; --lab takes another lab")
    known_as = [newest.surroundings for newest, *_ in by_gpu]
    facts = {name: json.loads(texts.get(name, "{}")) for name in set(known_as)}
    group_of, groups = _groups(known_as, facts)
    gpus = [
        Gpu(own[0], [run.run_id for run in own], group_of[name], facts[name])
        for own, name in zip(by_gpu, known_as, strict=True)
    ]
    signs = np.array([-1 if figure.value.better == "more" else 1 for figure in figures], FLOAT)
    middles, steady, repeated = _middles(list(_logs(by_gpu, columns, signs)))
    numbers = np.array([gpu.group for gpu in gpus])
    worse, chances = np.empty_like(middles), np.ones(middles.shape, FLOAT)
    for number in range(len(groups)):
        rows = np.flatnonzero(numbers == number)
        usual, spread = _usual(middles[rows])
        worse[rows] = middles[rows] - usual
        if len(rows) >= LEAST_GROUP:
            chances[rows] = _chances(steady[rows] - usual, spread)
    fleet = Fleet(experiment, lab, gpus, figures, np.exp(middles * signs), worse, groups, (), ())
    return _judged(fleet, chances, repeated)


# Into one table


def _columns(layouts: Collection[str], texts: Mapping[str, str]) -> tuple[list[CellFigure], dict[str, list[int]]]:
    """All figures, cell by cell; and of each layout that can be read the place of each of its figures among them."""
    named = {layout: of for layout in sorted(layouts) if (of := named_figures(texts.get(layout, "")))}
    cells = defaultdict[Any, dict[str, CellFigure]](dict)
    for of in named.values():
        for figure in of:
            cells[figure.key].setdefault(figure.figure, figure)
    figures = [figure for cell in cells.values() for figure in cell.values()]
    places = {(figure.key, figure.figure): place for place, figure in enumerate(figures)}
    return figures, {layout: [places[figure.key, figure.figure] for figure in of] for layout, of in named.items()}


def _groups(known_as: Sequence[str], facts: Mapping[str, Mapping[str, str]]) -> tuple[dict[str, int], list[str]]:
    """The number of the group of all GPUs with the same surroundings; and what each group is, the largest first.

    A group of few joins the largest one with the same GPU: an odd link, processor or driver is then held against the
    ordinary ones.

    Args:
        known_as: of each GPU its surroundings; ``facts``: what these are.
    """
    keys = {name: tuple(of.get(key, "–") for key in ALIKE) for name, of in facts.items()}
    sizes = Counter(keys[name] for name in known_as)
    chosen = {
        key: max((other for other in sizes if other[0] == key[0]), key=lambda other: (sizes[other], other))
        if size < LEAST_GROUP
        else key
        for key, size in sizes.items()
    }
    groups = [key for key, _ in Counter(chosen[keys[name]] for name in known_as).most_common()]
    words = ["; ".join(f"{key_title(name)} {text}" for name, text in zip(ALIKE, key, strict=True)) for key in groups]
    return {name: groups.index(chosen[key]) for name, key in keys.items()}, words


def _logs(by_gpu: Sequence[Sequence[FleetRun]], columns: Mapping[str, list[int]], signs: Floats) -> Floats:
    """Logarithms of the figures, greater being worse, by number of the run and GPU; infinite where there is none."""
    logs = np.full((max(map(len, by_gpu)), len(by_gpu), len(signs)), np.inf, FLOAT)
    for (number, of_number), (layout, at) in product(enumerate(logs), columns.items()):
        has = [place for place, own in enumerate(by_gpu) if number < len(own) and own[number].layout == layout]
        content = b"".join(by_gpu[place][number].content for place in has)
        with np.errstate(all="ignore"):
            known = np.log(np.frombuffer(content, FLOAT).reshape(len(has), len(at))) * signs[at]
        of_number[np.ix_(has, at)] = np.where(np.isfinite(known), known, np.inf)
    return logs


# What is usual, and who is not


def _middles(runs: list[Floats]) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Of each GPU and figure: the median of its runs, the better of the middle ones, and whether there are enough of
    them to blame it."""
    for last in range(len(runs) - 1, 0, -1):  # sorts run by run: few runs, many figures
        for place in range(last):
            runs[place], runs[place + 1] = np.minimum(*runs[place : place + 2]), np.maximum(*runs[place : place + 2])
    steady, other = np.full_like(runs[0], np.nan), np.full_like(runs[0], np.nan)
    for before, run in enumerate(runs):
        has = np.isfinite(run)
        np.copyto(steady, runs[before // 2], where=has)
        np.copyto(other, runs[(before + 1) // 2], where=has)
    repeated = np.isfinite(runs[LEAST_RUNS - 1]) if len(runs) >= LEAST_RUNS else np.zeros(steady.shape, bool)
    return (steady + other) / 2, steady, repeated


def _usual(middles: Floats) -> tuple[Floats, Floats]:
    """The median of each figure over the GPUs of a group, and the standard deviation that its better half shows."""
    ordered = np.sort(np.ascontiguousarray(middles.T), axis=1)  # what is not known last
    counts, every = np.count_nonzero(np.isfinite(ordered), axis=1), np.arange(len(ordered))
    at = np.array([[0.5], *([share] for share, _ in DEPTHS)]) * np.maximum(counts - 1, 0)
    usual, *depths = (ordered[every, np.floor(at).astype(int)] + ordered[every, np.ceil(at).astype(int)]) / 2
    spread = np.full(len(counts), LEAST_SPREAD)
    for (share, deviations), better in zip(DEPTHS, depths, strict=True):
        spread = np.where(share * counts >= 2, np.fmax((usual - better) / deviations, spread), spread)
    spread[counts < LEAST_GROUP] = np.inf  # a figure that few GPUs have blames nobody
    return usual, spread


def _chances(apart: Floats, spread: Floats) -> Floats:
    """Of each GPU and figure of a group: the chance that an ordinary GPU is as far out; 1 of those that are worse by
    less than the tolerance, or than what ordinary GPUs are."""
    freedom = max(len(apart) // 3 - 1, 1)  # the better half says how far they lie apart, less well than all would
    far = np.nonzero(apart > np.maximum(2 * spread, math.log1p(TOLERANCE)).astype(FLOAT))
    t = apart[far].astype(float) / spread[far[1]]
    # Student's t as a normal deviate (Wallace, Annals of Mathematical Statistics 30, 1959).
    z = np.sqrt(freedom * np.log1p(t**2 / freedom)) * (8 * freedom + 1) / (8 * freedom + 3)
    chances = np.ones(apart.shape, FLOAT)
    chances[far] = [max(math.erfc(value / math.sqrt(2)) / 2, 1e-30) for value in z.tolist()]
    return chances


def _out(chances: Floats, cells: NDArray[np.int_], known: NDArray[np.bool_]) -> list[int]:
    """Places of the GPUs that are out.

    Args:
        chances: of each GPU and figure.
        cells: of each figure the number of its cell; those of a cell stand together.
        known: of each GPU and figure, whether there is one.
    """
    begins, sizes = np.flatnonzero(np.diff(cells, prepend=-1)), np.bincount(cells)
    of_cells = np.sort(np.minimum.reduceat(chances, begins, axis=1) * sizes, axis=1)
    counts = np.logical_or.reduceat(known, begins, axis=1).sum(axis=1, keepdims=True)
    beyond = np.arange(1, len(sizes) + 1) - np.minimum(LEAST_CELLS, counts) + 1  # the least number of cells, from 1 on
    of_as_many = of_cells * (counts - np.minimum(LEAST_CELLS, counts) + 1) / np.maximum(beyond, 1)
    least = np.where(beyond < 1, 1.0, of_as_many).min(axis=1)
    return np.flatnonzero(least <= benjamini_hochberg(least.tolist(), FALSE_SHARE)).tolist()


# What is said of an outlier


def _judged(fleet: Fleet, chances: Floats, repeated: NDArray[np.bool_]) -> Fleet:
    """The fleet with those that are blamed. ``repeated``: of each GPU and figure, whether there are enough runs."""
    numbers = {cell: number for number, cell in enumerate(dict.fromkeys(figure.key for figure in fleet.figures))}
    out = _out(chances, np.array([numbers[figure.key] for figure in fleet.figures]), np.isfinite(fleet.worse))
    why = _why(fleet.gpus, out)
    often = np.any((chances < 1) & repeated, axis=1)
    outliers = [_outlier(fleet, place, chances[place], why[place], bool(often[place])) for place in out]
    outliers.sort(key=lambda outlier: -outlier.change)
    blamed, once = ([outlier for outlier in outliers if often[outlier.place] == is_often] for is_often in (True, False))
    return replace(fleet, outliers=blamed, suspects=once)


def _why(gpus: Sequence[Gpu], out: Sequence[int]) -> dict[int, Why]:
    """What sets those that are out apart from the others of their group."""
    sizes, alike = Counter(gpu.group for gpu in gpus), {id(gpu.facts): gpu for gpu in gpus}
    has, out_has, usual = Counter[tuple[int, str, str]](), Counter[tuple[int, str, str]](), dict[tuple[int, str], str]()
    for name, count in Counter(id(gpu.facts) for gpu in gpus).items():
        for key, value in alike[name].facts.items():
            has[alike[name].group, key, value] += count
    for place in out:
        out_has.update((gpus[place].group, *item) for item in gpus[place].facts.items())
    for (group, key, value), count in has.most_common():
        is_rare = key.startswith(FINDING) and 2 * count <= sizes[group]
        usual.setdefault((group, key), HAS_NOT if is_rare else value)
    explained = {item for item, count in out_has.items() if count >= EXPLAINS * has[item]}
    likely = {key: place for place, key in enumerate(LIKELY)}
    why = dict[int, Why]()
    for place in out:
        group, facts = gpus[place].group, gpus[place].facts
        keys = [
            (likely.get(key, len(likely) + (not key.startswith(FINDING))), key, value)
            for key, value in facts.items()
            if value != usual[group, key] and (group, key, value) in explained
        ]
        # What is like nobody else's, as an amount of memory, says nothing beside a key that is known to matter.
        known = [item for item in keys if item[0] <= len(likely)]
        why[place] = [(key, value, usual[group, key]) for _, key, value in sorted(known or keys)[:MOST_KEYS]]
    return why


def _outlier(fleet: Fleet, place: int, chances: Floats, why: Why, often: bool) -> Outlier:
    """A GPU that is out; ``chances``: of its figures, ``often``: in several runs."""
    level = benjamini_hochberg(chances[np.isfinite(fleet.worse[place])].tolist(), FALSE_SHARE)
    sure = np.flatnonzero(chances <= max(level, chances.min()))
    out = sorted(sure.tolist(), key=lambda at: -fleet.worse[place, at])
    return Outlier(
        place=place,
        gpu=fleet.gpus[place],
        figures=out,
        change=math.expm1(float(fleet.worse[place, out[0]])),
        words=f"{'' if often else 'in one run only: '}{_what(fleet, place, set(out))}",
        why=why,
        chance=float(chances.min()),
    )


def _what(fleet: Fleet, place: int, out: set[int]) -> str:
    """What is worse, as a comparison names it: of the figures that stand for their cells, or of that which most often
    is."""
    said, title = fleet.firsts, ""
    if len(out.intersection(said)) < LEAST_CELLS:
        ((name, _),) = Counter(fleet.figures[at].figure for at in sorted(out)).most_common(1)
        said = [at for at, figure in enumerate(fleet.figures) if figure.figure == name]
        title = f"{fleet.figures[said[0]].value.title}: "
    cells = [_compared(fleet, place, at, at in out) for at in said if np.isfinite(fleet.worse[place, at])]
    group = group_of(cells, "worse")
    return f"{title}{group.words}" if group else fleet.figures[min(out)].full_words


def _compared(fleet: Fleet, place: int, at: int, is_out: bool) -> ComparedCell:
    figure, own = fleet.figures[at], float(fleet.values[place, at])
    sign = -1.0 if figure.value.better == "more" else 1.0
    ratio = math.exp(sign * float(fleet.worse[place, at]))
    usual, runs = Pooled(own / ratio, len(fleet.gpus), None), Pooled(own, len(fleet.gpus[place].runs), None)
    verdict: CellVerdict = "worse" if is_out else "same"
    return ComparedCell(**vars(figure), a=usual, b=runs, ratio=ratio, low=None, high=None, verdict=verdict)
