"""Runs set against other runs: from ids, bundles and folders of bundles to comparisons; and these as tables, JSON,
Markdown."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any, cast

from pinscope.analysis.comparison import SIGNS, ComparedCell, Comparison, Measured, Pooled, Side, compare
from pinscope.errors import BadInput
from pinscope.experiments.registry import measured_run, verdict_of
from pinscope.records.run import LAB_TITLES, Run, Table, table
from pinscope.report.facts import place
from pinscope.store.bundle import SUFFIX, open_bundle
from pinscope.store.new_file import write_new
from pinscope.units import format_change, format_precision, format_share, format_value

if TYPE_CHECKING:  # bundles are compared without a database, which takes a third of a second to import
    from pinscope.store.store import Store

MOST_IDS = 3
"""Of a side that are named."""
MOST_ROWS = 20
"""Of what differs, in a table."""
FOREMOST = 4
"""Figures that are read first."""
FORMAT = 1
"""Version of the document; additive changes keep it."""
NOTE = (
    "Intervals hold for all cells together: of those called different 1 in 20 is expected to be so by chance. ~: the "
    "runs do not tell them apart. Several runs a side tell smaller differences: their own spread counts then."
)
"""How the figures are to be read."""
SAME_FIRST = ("driver", "CUDA of the driver", "kernel", "transparent huge pages", "NUMA nodes", "IOMMU", "PCIe lanes")
"""What is named of all that both machines have in common."""


@dataclass(frozen=True)
class Compared:
    """All comparisons that were asked for, and what could not be compared: in words."""

    comparisons: Sequence[Comparison]
    left_out: Sequence[str]


def compare_named(store: Callable[[], Store], names: Sequence[str]) -> Compared:
    """The first of these against each other one, experiment by experiment.

    Args:
        store: gives what knows runs by their ids; it is asked where such are named.
        names: of each side: the id of a run, a bundle, a folder of bundles, or several of them by comma.

    Raises:
        BadInput: less than two sides, a run on several, or nothing that two sides have in common.
    """
    return _compared([measured_runs(store, name) for name in names])


def compare_runs(store: Store, sides: Sequence[Sequence[Run]]) -> Compared:
    """As :func:`compare_named`, of runs that the store has: what a link names may open no file."""
    return _compared([(measured_run(run, store.observations(run.id)) for run in side) for side in sides])


def _compared(given: Sequence[Iterable[Measured]]) -> Compared:
    if not 2 <= len(given) <= len(ascii_uppercase):
        raise BadInput(f"two sides or more are compared, at most {len(ascii_uppercase)} ({len(given)} given)")
    sides = [_by_kind(ascii_uppercase[number], runs) for number, runs in enumerate(given)]
    ids = [measured.run.id for side in sides for of_kind in side.values() for measured in of_kind.runs]
    if twice := [own for own in ids if ids.count(own) > 1]:
        raise BadInput(f"run {twice[0]} is there twice; each run is on one side")
    first, *others = sides
    pairs = [(first[kind], other[kind]) for other in others for kind in first if kind in other]
    if not pairs:
        compare(next(iter(first.values())), next(iter(others[0].values())))  # says why they cannot be
    left_out = [
        f"{side.name} alone has {experiment} ({LAB_TITLES[lab]})"  # type: ignore[index]
        for sides_of_kind in sides
        for (experiment, lab), side in sides_of_kind.items()
        if all((experiment, lab) not in other for other in sides if other is not sides_of_kind)
    ]
    return Compared([compare(*pair) for pair in pairs], left_out)


def _by_kind(name: str, runs: Iterable[Measured]) -> dict[tuple[str, str], Side]:
    """Experiment and lab → the runs of it."""
    kinds: dict[tuple[str, str], list[Measured]] = {}
    for measured in runs:
        kinds.setdefault((measured.run.experiment, measured.run.lab), []).append(measured)
    return {kind: Side(name, of_kind) for kind, of_kind in kinds.items()}


def measured_runs(store: Callable[[], Store], name: str) -> Iterator[Measured]:
    """The runs of a side, one after the other: their rows are let go when their cells are known."""
    parts = [name] if Path(name).exists() else name.split(",")
    for part in filter(None, parts):
        path = Path(part)
        if path.is_dir():
            files = sorted(path.glob(f"*{SUFFIX}"))
            if not files:
                raise BadInput(f"{part} has no bundle (*{SUFFIX})")
        elif path.suffix == SUFFIX or path.is_file():
            files = [path]
        else:
            run = store().run(part)
            yield measured_run(run, store().observations(run.id))
            continue
        for file in files:
            with open_bundle(file, whole=False) as bundle:
                yield from (measured_run(run, rows) for run, rows in bundle.items())


# As tables


def machine_table(comparison: Comparison) -> Table:
    """What differs in the machines, and in the parameters of the runs."""
    machine = [(key.title, key.a, key.b) for key in comparison.machines.different]
    settings = [(f"parameter {name}", *values) for name, values in comparison.settings.items()]
    a, b = comparison.a.name, comparison.b.name
    return table("What differs", {"key": "text", a: "text", b: "text"}, [*machine, *settings])


def same_words(comparison: Comparison) -> str:
    """What both machines have in common: the first of it by name, of the rest how many."""
    same = comparison.machines.same
    named = [f"{title} {same[title]}" for title in SAME_FIRST if title in same]
    unknown = len(comparison.machines.unknown)
    words = f"The same: {', '.join(named)} and {len(same) - len(named)} more"
    return words + (f"; not recorded on one side: {unknown}" if unknown else "")


def cells_table(comparison: Comparison, title: str, cells: Sequence[ComparedCell]) -> Table:
    """Cells as they stand on both sides, what costs most first; a figure that all have stands in the title."""
    a, b = comparison.a.name, comparison.b.name
    figures = list(dict.fromkeys(cell.value.title for cell in cells))
    several = ("figure",) if len(figures) > 1 else ()
    rows = [
        (
            cell.words or "all",
            *([cell.value.title] if several else []),
            *(side_text(side, cell.value.unit) for side in (cell.a, cell.b)),
            f"{SIGNS[cell.verdict]} {format_change(cell.ratio)}",
            cell.interval_words,
        )
        for cell in cells
    ]
    heading = title if several or not figures else f"{title}: {figures[0]}"
    return table(heading, dict.fromkeys(("cell", *several, a, b, "change", "interval"), "text"), rows)


def side_text(figure: Pooled, unit: str) -> str:
    """A figure of one side with its ±."""
    return f"{format_value(figure.value, unit)} {format_precision(figure.spread, None)}".rstrip()


def foremost(comparison: Comparison) -> Sequence[ComparedCell]:
    """The figures that are read first: the worst and the best of what differs, else the first."""
    differing = [cell for cell in comparison.firsts if cell.differs]
    half = FOREMOST // 2
    return [*differing[:half], *differing[half:][-half:]] or comparison.firsts[:FOREMOST]


def alone_table(comparison: Comparison) -> Table:
    """Cells of one side only."""
    rows = [
        (cell.words, (comparison.a if cell.first else comparison.b).name, format_value(cell.value, cell.unit))
        for cell in comparison.alone
    ]
    return table("On one side only", {"cell": "text", "on": "text", "figure": "text"}, rows)


def findings_table(comparison: Comparison) -> Table:
    """Findings that came and went."""
    rows = [
        *(("went", finding.title) for finding in comparison.went),
        *(("came", finding.title) for finding in comparison.came),
    ]
    return table("Findings that came and went", {"change": "text", "finding": "text"}, rows)


def counted_words(comparison: Comparison) -> str:
    """``▲ 5 better · ▼ 1 worse · ~ 242 the same · ? 3 measured once``, and what one side alone has."""
    words = {"better": "better", "worse": "worse", "same": "the same", "unknown": "not known: measured once"}
    counts = [
        f"{SIGNS[verdict]} {comparison.counts[verdict]:,} {words[verdict]}"
        for verdict in SIGNS
        if comparison.counts[verdict]
    ]
    sides = zip((comparison.a, comparison.b), comparison.alone_counts, strict=True)
    return " · ".join([*counts, *(f"{count:,} on side {side.name} only" for side, count in sides if count)])


def mean_words(comparison: Comparison) -> str:
    """The geometric mean over all cells; empty where there is none."""
    gain = comparison.geometric_mean
    if gain is None or not _is_experiment(comparison):
        return ""
    word = "better" if gain >= 1 else "worse"
    words = f"{comparison.called[1]} is {format_share(abs(gain - 1))} {word}"
    return f"Geometric mean of {len(comparison.firsts):,} cells: {words}."


def _is_experiment(comparison: Comparison) -> bool:
    return comparison.a.runs[0].run.kind == "experiment"


def side_words(side: Side) -> str:
    """Which runs a side is, where and when they were made."""
    runs = [measured.run for measured in side.runs]
    ids = ", ".join(run.name or run.id for run in runs[:MOST_IDS])
    ids += f" and {len(runs) - MOST_IDS} more" if len(runs) > MOST_IDS else ""
    places = ", ".join(dict.fromkeys(map(place, runs)))
    made = sorted(run.created_at for run in runs)
    days = dict.fromkeys(f"{moment:%Y-%m-%d %H:%M}" for moment in (made[0], made[-1]))
    return f"{ids} · {places} · {' to '.join(days)}"


def _cells(
    comparison: Comparison, title: str, cells: Sequence[ComparedCell], everything: bool
) -> Iterator[Table | str]:
    shown = cells if everything else _most(cells)
    yield cells_table(comparison, title, shown)
    if hidden := len(cells) - len(shown):
        yield f"{hidden:,} more differ."


def _most(cells: Sequence[ComparedCell]) -> Sequence[ComparedCell]:
    """Of many the worst and the best."""
    half = MOST_ROWS // 2
    return cells if len(cells) <= MOST_ROWS else [*cells[:half], *cells[-half:]]


def machines(comparison: Comparison, everything: bool = False) -> Iterator[Table | str]:
    """The sides, and what differs in their machines."""
    sides = [(side.name, side_words(side)) for side in (comparison.a, comparison.b)]
    yield table("Sides", {"side": "text", "runs": "text"}, sides)
    yield machine_table(comparison)
    yield same_words(comparison)
    if everything:
        yield table("The same on both sides", {"key": "text", "both": "text"}, comparison.machines.same.items())


def cells(comparison: Comparison, everything: bool = False) -> Iterator[Table | str]:
    """Which cells differ, how many do not, and findings that came and went."""
    firsts, further = comparison.firsts, [cell for cell in comparison.shown if not cell.is_first]
    differing = [cell for cell in firsts if cell.differs]
    yield from _cells(comparison, "What is better and worse", firsts if everything else differing, everything)
    yield counted_words(comparison)
    yield mean_words(comparison)
    others = [cell for cell in comparison.cells if not cell.is_first] if everything else further
    yield from _cells(comparison, "Further figures", others, everything)
    if not everything:
        once = [cell for cell in firsts if cell.verdict == "unknown"]
        once.sort(key=lambda cell: -abs(cell.b.value - cell.a.value))
        yield cells_table(comparison, "Measured once: not told from chance", once[:MOST_ROWS])
    if everything or not _is_experiment(comparison):
        yield alone_table(comparison)
    yield findings_table(comparison)
    yield NOTE


# As documents


def comparison_document(compared: Compared) -> dict[str, Any]:
    """``{"format", "comparisons", "left_out"}``: values in SI units, named beside them. Later versions may add keys."""
    return {
        "format": FORMAT,
        "comparisons": [comparison_object(comparison) for comparison in compared.comparisons],
        "left_out": list(compared.left_out),
    }


def comparison_object(comparison: Comparison) -> dict[str, Any]:
    """One comparison of the document."""
    machines = comparison.machines
    first, second = comparison.alone_counts
    return {
        "experiment": comparison.experiment,
        "lab": comparison.a.runs[0].run.lab,
        "sides": [
            {"name": side.name, "runs": [measured.run.id for measured in side.runs]}
            for side in (comparison.a, comparison.b)
        ],
        "verdict": verdict_of(comparison),
        "same_machine": machines.is_one_machine,
        "machine_differences": [asdict(key) for key in machines.different],
        "machine_same": dict(machines.same),
        "machine_unknown": list(machines.unknown),
        "parameter_differences": {name: list(values) for name, values in comparison.settings.items()},
        "counts": {**{verdict: comparison.counts[verdict] for verdict in SIGNS}, "a_only": first, "b_only": second},
        "geometric_mean_gain_ratio": comparison.geometric_mean,
        "groups": [
            {
                "verdict": group.verdict,
                "conditions": list(group.conditions),
                "cells": len(group.cells),
                "of": group.of,
                "change_share": group.change if math.isfinite(group.change) else None,
            }
            for group in comparison.groups
        ],
        "cells": [_cell_document(cell) for cell in comparison.cells],
        "only": [
            {"side": (comparison.a if cell.first else comparison.b).name, "labels": dict(cell.labels)}
            | {"figure": cell.figure, "unit": cell.unit, "value": cell.value}
            for cell in comparison.alone
        ],
        "findings": {
            key: [{"rule": finding.rule, "title": finding.title} for finding in findings]
            for key, findings in (("came", comparison.came), ("went", comparison.went))
        },
    }


def _cell_document(cell: ComparedCell) -> dict[str, Any]:
    return {
        "labels": dict(cell.labels),
        "figure": cell.figure,
        "unit": cell.value.unit,
        "better": cell.value.better,
        "first": cell.is_first,
        "a": asdict(cell.a),
        "b": asdict(cell.b),
        "ratio": cell.ratio,
        "low": cell.low,
        "high": cell.high,
        "verdict": cell.verdict,
    }


SUFFIXES = (".html", ".md", ".json")
"""Formats of a report of a comparison."""


def write_comparison(path: Path, compared: Compared) -> None:
    """Write a report to a file that is not there yet; its suffix is the format.

    Raises:
        BadInput: another suffix, or the folder is missing or may not be written to.
        PathExists: there is a file of that name.
    """
    write_new(path, [render(compared, path.suffix.lower())])


def render(compared: Compared, suffix: str) -> bytes:
    """The report in the format of ``suffix``.

    Raises:
        BadInput: another suffix.
    """
    if suffix not in SUFFIXES:
        raise BadInput(f"the suffix tells the format of a comparison; there are: {', '.join(SUFFIXES)}")
    if suffix == ".json":
        return render_json(compared)
    kind = "markdown" if suffix == ".md" else "html"
    room = import_module(f"pinscope.report.{kind}")  # by name: Jinja and Plotly take a fifth of a second
    return cast("bytes", getattr(room, f"comparison_{kind}")(compared))


def render_json(compared: Compared) -> bytes:
    """The document as a file's content."""
    return (json.dumps(comparison_document(compared), ensure_ascii=False, allow_nan=False) + "\n").encode()
