"""Runs set against other runs: from ids, bundles and folders of bundles to comparisons, and these as tables and files;
baselines as files, and what a check says: lines, JSON and JUnit XML."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any, cast
from xml.etree import ElementTree as ET

from pydantic import ValidationError

from pinscope.analysis.check import Baseline, Checked, KeptRuns, Regression, regression_words
from pinscope.analysis.comparison import SIGNS, ComparedCell, Comparison, Measured, Side, change_words, compare
from pinscope.errors import BadInput
from pinscope.experiments.registry import measured_run, verdict_of
from pinscope.records.run import LAB_TITLES, Origin, Run, Table, table
from pinscope.report.facts import place
from pinscope.store.bundle import SUFFIX, open_bundle
from pinscope.store.documents import first_complaint
from pinscope.store.new_file import check_new, write_new
from pinscope.text import first_of
from pinscope.units import format_change, format_measured, format_share, format_value

if TYPE_CHECKING:  # bundles are compared without a database, which takes a third of a second to import
    from pinscope.store.store import Store

DIFFERENT = "What is better and worse"
MOST_ROWS = 20
"""Of what differs, in a table."""
FOREMOST = 4
"""Figures that are read first."""
FORMAT = 1
"""Version of the document; additive changes keep it."""
NOTE = "Of the cells called different 1 in 20 may be so by chance. ~: no difference beyond it; more runs show more."
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
    sides = [Side(name, list(runs)) for name, runs in zip(ascii_uppercase, given, strict=False)]
    runs = [measured.run for side in sides for measured in side.runs]
    ids = [run.id for run in runs]
    if twice := [own for own in ids if ids.count(own) > 1]:
        raise BadInput(f"run {twice[0]} is there twice; each run is on one side")
    comparisons, left_out = list[Comparison](), list[str]()
    for kind in dict.fromkeys(map(_kind, runs)):
        alike = [Side(side.name, [own for own in side.runs if _kind(own.run) == kind]) for side in sides]
        first, *others = [side for side in alike if side.runs]
        if not others:
            left_out.append(f"{first.name} alone has {kind[0]} ({LAB_TITLES[kind[1]]})")
        comparisons += [compare(first, other) for other in others]
    if not comparisons:
        compare(sides[0], sides[1])  # says why they cannot be
    return Compared(comparisons, left_out)


def _kind(run: Run) -> tuple[str, Origin]:
    """What runs that are compared have in common."""
    return run.experiment, run.lab


def measured_runs(store: Callable[[], Store], name: str) -> Iterator[Measured]:
    """The runs of a side, one after the other: their rows are let go when their cells are known."""
    parts = [name] if Path(name).exists() else name.split(",")
    for part in filter(None, parts):
        path = Path(part)
        if path.suffix != SUFFIX and not path.exists():
            run = store().run(part)
            yield measured_run(run, store().observations(run.id))
            continue
        files = sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path]
        if not files:
            raise BadInput(f"{part} has no bundle (*{SUFFIX})")
        for file in files:
            with open_bundle(file, whole=False) as bundle:
                yield from (measured_run(run, rows) for run, rows in bundle.items())


# As tables


def machines(comparison: Comparison, everything: bool = False) -> list[Table]:
    """The sides, what they have in common, and what differs in their machines and in the parameters of their runs."""
    a, b, keys = comparison.a, comparison.b, comparison.machines
    named = [f"{title} {keys.same[title]}" for title in SAME_FIRST if title in keys.same]
    more = f"and {len(keys.same) - len(named)} more"
    more += f"; not recorded on one side: {len(keys.unknown)}" if keys.unknown else ""
    about = [(side.name, _side_words(side)) for side in (a, b)]
    about += [("the same", ", ".join([*named, more])), ("cells", _counted_words(comparison))]
    different = ((key.title, key.a, key.b) for key in (*keys.different, *comparison.settings))
    return [
        *_texts("Both sides", ("side", "what it is"), about),
        *_texts("What differs", ("key", a.name, b.name), different),
        *_texts("The same on both sides", ("key", "both"), keys.same.items() if everything else ()),
    ]


def _texts(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], note: str = "") -> list[Table]:
    """A table of texts; none without rows."""
    made = table(title, dict.fromkeys(columns, "text"), rows, note)
    return [made] if made.rows else []


def _side_words(side: Side) -> str:
    """Which runs a side is, where and when they were made."""
    runs = [measured.run for measured in side.runs]
    ids = first_of([run.name or run.id for run in runs])
    places = ", ".join(dict.fromkeys(map(place, runs)))
    made = sorted(run.created_at for run in runs)
    days = dict.fromkeys(f"{moment:%Y-%m-%d %H:%M}" for moment in (made[0], made[-1]))
    return f"{ids} · {places} · {' to '.join(days)}"


def _counted_words(comparison: Comparison) -> str:
    """``▲ 5 better · ▼ 1 worse · ~ 242 same``, what one side alone has, and of an experiment the mean of all."""
    counts = {f"{sign} {{:,}} {verdict}": comparison.counts[verdict] for verdict, sign in SIGNS.items()}
    sides = (f"{{:,}} on side {side.name} only" for side in (comparison.a, comparison.b))
    counts |= zip(sides, comparison.alone_counts, strict=True)
    said = [words.format(count) for words, count in counts.items() if count]
    gain = comparison.mean_gain
    if gain is not None and comparison.a.runs[0].run.kind == "experiment":
        mean = f"{format_share(abs(gain - 1))} {'better' if gain >= 1 else 'worse'}"
        said.append(f"geometric mean: {comparison.called[1]} is {mean}")
    return " · ".join(said)


def cells(comparison: Comparison, everything: bool = False) -> list[Table]:
    """Cells that differ, what costs most first, their further figures, cells measured once; all for ``everything``.
    Then what one side alone has, and findings that came and went."""
    once = [cell for cell in comparison.firsts if cell.verdict == "unknown"]
    first, further = ([cell for cell in comparison.shown if cell.is_first == is_first] for is_first in (True, False))
    some = {DIFFERENT: first, "Further figures": further, "Measured once: no interval": once}
    groups: Mapping[str, Sequence[ComparedCell]] = {DIFFERENT: comparison.cells} if everything else some
    most = len(comparison.cells) if everything else MOST_ROWS
    lone = (
        (
            cell.words,
            comparison.b.name if cell.is_new else comparison.a.name,
            format_value(cell.amount, cell.value.unit),
        )
        for cell in comparison.alone[: None if everything else MOST_ROWS]
    )
    changes = ((word, finding.title) for word, some in comparison.findings.items() for finding in some)
    return [
        *(each for title, group in groups.items() for each in _cells(comparison, title, group, most)),
        *_texts("On one side only", ("cell", "on", "figure"), lone),
        *_texts("Findings that came and went", ("change", "finding"), changes),
    ]


def _cells(comparison: Comparison, title: str, cells: Sequence[ComparedCell], most: int) -> list[Table]:
    """Cells as they stand on both sides, of many the worst and the best; a figure that all have stands in the title."""
    shown, figures = _outermost(cells, most), {cell.value.title for cell in cells}
    rows = (
        (
            cell.full_words if len(figures) > 1 else cell.words,
            *(format_measured(side.value, cell.value.unit, side.spread) for side in (cell.a, cell.b)),
            f"{SIGNS[cell.verdict]} {format_change(cell.ratio)}",
            cell.interval_words,
        )
        for cell in shown
    )
    hidden = [f"{len(cells) - len(shown):,} more."] if len(cells) > len(shown) else []
    note = " ".join([*hidden, NOTE] if title == DIFFERENT else hidden)
    title = ": ".join([title, *(figures if len(figures) == 1 else ())])
    return _texts(title, ("cell", comparison.a.name, comparison.b.name, "change", "interval"), rows, note)


def _outermost(cells: Sequence[ComparedCell], most: int) -> Sequence[ComparedCell]:
    """Of many the worst and the best."""
    return [*cells[: most // 2], *cells[most // 2 :][-most // 2 :]]


def foremost(comparison: Comparison) -> Sequence[ComparedCell]:
    """The figures that are read first: the worst and the best of what differs, else the first."""
    return _outermost([cell for cell in comparison.firsts if cell.differs], FOREMOST) or comparison.firsts[:FOREMOST]


# As documents


def comparison_document(compared: Compared) -> dict[str, Any]:
    """``{"format", "comparisons", "left_out"}``: values in SI units, named beside them. Later versions may add keys."""
    comparisons = [comparison_object(comparison) for comparison in compared.comparisons]
    return {"format": FORMAT, "comparisons": comparisons, "left_out": list(compared.left_out)}


def comparison_object(comparison: Comparison) -> dict[str, Any]:
    """One comparison of the document."""
    a, b, machines = comparison.a, comparison.b, comparison.machines
    alone = zip(("a_only", "b_only"), comparison.alone_counts, strict=True)
    return {
        "experiment": comparison.experiment,
        "lab": a.runs[0].run.lab,
        "sides": [{"name": side.name, "runs": [measured.run.id for measured in side.runs]} for side in (a, b)],
        "verdict": verdict_of(comparison),
        "same_machine": machines.is_one_machine,
        "machine_differences": [vars(key) for key in machines.different],
        "machine_same": machines.same,
        "machine_unknown": machines.unknown,
        "parameter_differences": {key.key: (key.a, key.b) for key in comparison.settings},
        "counts": {verdict: comparison.counts[verdict] for verdict in SIGNS} | dict(alone),
        "geometric_mean_gain_ratio": comparison.mean_gain,
        "groups": [
            {"verdict": group.verdict, "conditions": group.conditions, "cells": len(group.cells), "of": group.of}
            | {"change_share": group.change if math.isfinite(group.change) else None}
            for group in comparison.groups
        ],
        "cells": [
            {"labels": cell.labels, "figure": cell.figure, "unit": cell.value.unit, "better": cell.value.better}
            | {"first": cell.is_first, "a": vars(cell.a), "b": vars(cell.b), "ratio": cell.ratio}
            | {"low": cell.low, "high": cell.high, "verdict": cell.verdict}
            for cell in comparison.cells
        ],
        "only": [
            {"side": (b if cell.is_new else a).name, "labels": cell.labels, "figure": cell.figure}
            | {"unit": cell.value.unit, "value": cell.amount}
            for cell in comparison.alone
        ],
        "findings": {
            change: [{"rule": finding.rule, "title": finding.title} for finding in some]
            for change, some in comparison.findings.items()
        },
    }


SUFFIXES = (".html", ".md", ".json")
"""Formats of a report of a comparison."""


def write_comparison(path: Path, compared: Compared) -> None:
    """Write a report to a file that is not there yet; its suffix is the format.

    Raises:
        BadInput: another suffix, or the folder is missing or may not be written to.
        PathExists: there is a file of that name.
    """
    check_new(path, *SUFFIXES)
    write_new(path, [render(compared, path.suffix.lower())])


def render(compared: Compared, suffix: str) -> bytes:
    """The report in the format of ``suffix``, one of :data:`SUFFIXES`."""
    if suffix == ".json":
        return (json.dumps(comparison_document(compared), ensure_ascii=False, allow_nan=False) + "\n").encode()
    kind = "markdown" if suffix == ".md" else "html"
    room = import_module(f"pinscope.report.{kind}")  # by name: Jinja and Plotly take a fifth of a second
    return cast("bytes", getattr(room, f"comparison_{kind}")(compared))


# Baselines and checks


def write_baseline(path: Path, baseline: Baseline) -> None:
    """Write it to a file that is not there yet, a cell a line: so that version control shows which one changed."""
    experiments = ",\n".join(map(_kept_text, baseline.experiments))
    write_new(path, [f'{{\n"format": {baseline.format},\n"experiments": [\n{experiments}\n]\n}}\n'.encode()])


def _kept_text(kept: KeptRuns) -> str:
    document = kept.model_dump(mode="json")
    cells = ",\n".join(json.dumps(cell, ensure_ascii=False) for cell in document.pop("cells"))
    head = json.dumps(document, indent=1, ensure_ascii=False).removesuffix("\n}")
    return f'{head},\n "cells": [\n{cells}\n ]\n}}'


def read_baseline(path: Path) -> Baseline:
    """A file that :func:`write_baseline` wrote.

    Raises:
        BadInput: it is none, or cannot be read.
    """
    try:
        return Baseline.model_validate_json(path.read_bytes())
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from None
    except ValidationError as error:
        raise BadInput(f"{path} is no baseline of pinscope check ({first_complaint(error)})") from None


def regression_lines(result: Checked) -> list[str]:
    """A line of each that is worse."""
    return [
        f"{result.comparison.experiment}: {_where(worse)}: {regression_words(worse)}" for worse in result.regressions
    ]


def _where(worse: Regression) -> str:
    return worse.words if worse.is_first else worse.full_words


def check_document(checked: Sequence[Checked]) -> dict[str, Any]:
    """``{"format", "passed", "experiments"}``; later versions may add keys."""
    experiments = []
    for result in checked:
        regressions = [
            {"line": line, "labels": worse.labels, "figure": worse.figure, "ratio": getattr(worse, "ratio", None)}
            for line, worse in zip(regression_lines(result), result.regressions, strict=True)
        ]
        experiments.append(
            {"experiment": result.comparison.experiment, "regressions": regressions, "not_again": result.once}
            | {"comparison": comparison_object(result.comparison)}
        )
    passed = not any(result.regressions for result in checked)
    return {"format": FORMAT, "passed": passed, "experiments": experiments}


def junit(checked: Sequence[Checked]) -> bytes:
    """JUnit XML: a suite an experiment, a case a cell; what is worse is a failure of its own.

    A cell that would not show the tolerance is skipped.
    """
    root = ET.Element("testsuites", name="pinscope check")
    for result in checked:
        name, failing = result.comparison.experiment, {worse.key for worse in result.regressions}
        suite = ET.SubElement(root, "testsuite", name=name)
        hidden = f"{change_words(result.tolerance)} worse would not show: too few runs"
        others = [cell for cell in result.cells if cell.key not in failing]
        cases = [(_where(worse), "failure", regression_words(worse)) for worse in result.regressions]
        cases += [(cell.words, "" if result.tells(cell) else "skipped", hidden) for cell in others]
        for where, outcome, why in cases:
            case = ET.SubElement(suite, "testcase", classname=name, name=where)
            if outcome:
                ET.SubElement(case, outcome, message=why)
        for counted, tags in (("tests", "testcase"), ("failures", "*/failure"), ("skipped", "*/skipped")):
            suite.set(counted, str(len(suite.findall(tags))))
    ET.indent(root)
    return bytes(ET.tostring(root, "utf-8", xml_declaration=True)) + b"\n"


RESULT_SUFFIXES = (".xml", ".json")
"""Formats of what a check found: JUnit XML, and the document."""


def write_result(path: Path, checked: Sequence[Checked]) -> None:
    """Write what a check found to a file that is not there yet: .xml or .json."""
    document = json.dumps(check_document(checked), ensure_ascii=False, allow_nan=False) + "\n"
    write_new(path, [junit(checked) if path.suffix.lower() == ".xml" else document.encode()])
