"""A fleet read from the store, and as tables, JSON, CSV and files."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np

from pinscope.analysis.baseline import FORMAT as BASELINE_FORMAT
from pinscope.analysis.baseline import Baseline, KeptCell, KeptFigure, KeptRuns
from pinscope.analysis.comparison import change_words
from pinscope.analysis.outliers import NEWEST, Fleet, Outlier, fleet_of
from pinscope.errors import BadInput, PinScopeError
from pinscope.experiments.registry import run_figures
from pinscope.records.run import LAB_TITLES, Table, table
from pinscope.report.write import csv_cell
from pinscope.store.figures import experiments_with_figures, runs_without_figures, stored_figures
from pinscope.store.new_file import write_new
from pinscope.store.store import Store
from pinscope.units import format_value

FORMAT = 1
"""Version of the document; additive changes keep it."""
MOST_ROWS = 500
"""GPUs in a table, those that are worse first; files of numbers have all."""
BASELINE_GPUS = 16
"""Whose figures a baseline of the fleet has."""
QUANTILES = ("least", "a quarter", "median", "three quarters", "most")
STATES = {"outlier": "worse", "suspect": "worse once", "alone": "too few alike", "": ""}


def kinds(store: Store) -> list[tuple[str, str, int]]:
    """Experiment, lab and how many runs with figures the store has of it."""
    return list(experiments_with_figures(store))


def read_fleet(
    store: Store,
    experiment: str,
    lab: str = "cuda",
    newest: int = NEWEST,
    since: datetime | None = None,
    told: Callable[[int, int], None] | None = None,
) -> Fleet:
    """The newest runs of an experiment on each GPU.

    Runs of an older PinScope, which kept no figures, are read anew, once.

    Args:
        store: has the runs.
        experiment, lab: of them.
        newest: how many of each GPU.
        since: only those that began then or later.
        told: is called with how many older runs are read, of how many.

    Raises:
        BadInput: there is no finished run of it.
    """
    old = runs_without_figures(store, experiment, lab)
    for number, run_id in enumerate(old):
        if told:
            told(number, len(old))
        try:
            run = store.run(run_id)
            if figures := run_figures(run, store.observations(run_id)):
                store.update(run_id, figures=figures)
        except PinScopeError:  # what cannot be read is left out; opening the run says why
            continue
    rows = stored_figures(store, experiment, lab, newest, since)
    fleet = fleet_of(experiment, lab, rows.runs, rows.texts)
    if not fleet.gpus:
        raise BadInput(f"no finished run of {experiment} on {LAB_TITLES[lab]}; pinscope fleet run {experiment}")  # type: ignore[index]
    return fleet


def verdict(fleet: Fleet) -> str:
    """One sentence."""
    count, gpus = len(fleet.outliers), len(fleet.gpus)
    what = "GPU" if any(gpu.gpu for gpu in fleet.gpus[:1]) else "host"
    of = f"{gpus:,} {what}{'' if gpus == 1 else 's'}"
    again = f"; {len(fleet.suspects)} more in one run only: run them again" if fleet.suspects else ""
    if len(fleet.alone) == gpus:
        return f"{of}: too few are alike to say which is worse."
    if not count:
        return f"None of {of} is worse than others like it{again}."
    worst = fleet.outliers[0]
    return (
        f"{count} of {of} {'is' if count == 1 else 'are'} worse than others like them, "
        f"{fleet.gpus[worst.place].words} by {change_words(worst.change)}{again}."
    )


def outlier_table(fleet: Fleet, label: str | None = None) -> Table:
    """Those that are worse, then those that were so once: what, and why."""
    some = [*fleet.outliers, *fleet.suspects]
    columns = {"GPU": "text", **({label: "text"} if label else {}), "worse by": "text", "what": "text", "why": "text"}
    rows = [
        (
            fleet.gpus[one.place].words,
            *((fleet.gpus[one.place].label(label),) if label else ()),
            change_words(one.change),
            one.words if one in fleet.outliers else f"in one run only: {one.words}",
            one.why_words,
        )
        for one in some
    ]
    return table(
        "Worse than others like them",
        {**columns, "newest run": "text"},
        [(*row, fleet.gpus[one.place].runs[0]) for row, one in zip(rows, some, strict=True)],
    )


def gpu_table(fleet: Fleet, label: str | None = None) -> Table:
    """One row a GPU, those that are worse first."""
    states = _states(fleet)
    order = sorted(range(len(fleet.gpus)), key=lambda place: (not states.get(place), place))[:MOST_ROWS]
    first = fleet.figures[fleet.firsts[0]]
    columns = {"GPU": "text", **({label: "text"} if label else {}), "group": "count", "runs": "count", "judged": "text"}
    left = len(fleet.gpus) - len(order)
    groups = "; ".join(f"{number}: {words}" for number, words in enumerate(fleet.groups[:4], start=1))
    return table(
        "GPUs",
        {**columns, first.words: first.value.unit, "newest run": "text"},
        [
            (
                gpu.words,
                *((gpu.label(label),) if label else ()),
                gpu.group + 1,
                len(gpu.runs),
                STATES[states.get(place, "")],
                _known(fleet.values[place, fleet.firsts[0]]),
                gpu.runs[0],
            )
            for place in order
            for gpu in (fleet.gpus[place],)
        ],
        note=f"Groups of like hardware: {groups}." + (f" {left:,} more are in the CSV file." if left else ""),
    )


def spread_table(fleet: Fleet) -> Table:
    """How each figure is spread, and who is out in it."""
    names: dict[int, list[str]] = {}
    for outlier in fleet.outliers:
        for at in outlier.figures:
            names.setdefault(at, []).append(fleet.gpus[outlier.place].words)
    columns = {"figure": "text", "group": "count", "GPUs": "count", **dict.fromkeys(QUANTILES, "text")}
    return table(
        "Figures over the fleet",
        {**columns, "worse": "text"},
        [
            (
                fleet.figures[spread.figure].words,
                spread.group + 1,
                spread.gpus,
                *(format_value(value, fleet.figures[spread.figure].value.unit) for value in spread.quantiles),
                _listed(names.get(spread.figure, ())),
            )
            for spread in fleet.spreads()
        ],
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _states(fleet: Fleet) -> dict[int, str]:
    states = dict.fromkeys(fleet.alone, "alone")
    states |= {one.place: "suspect" for one in fleet.suspects}
    return states | {one.place: "outlier" for one in fleet.outliers}


def _known(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None


def fleet_document(fleet: Fleet) -> dict[str, Any]:
    """``{"format", "experiment", "verdict", "outliers", "gpus" …}``; later versions may add keys."""
    states = _states(fleet)
    return {
        "format": FORMAT,
        "experiment": fleet.experiment,
        "lab": fleet.lab,
        "verdict": verdict(fleet),
        "groups": list(fleet.groups),
        "outliers": [_outlier(fleet, one) for one in fleet.outliers],
        "suspects": [_outlier(fleet, one) for one in fleet.suspects],
        "gpus": [
            {
                "host": gpu.host,
                "gpu": gpu.gpu or None,
                "device": gpu.device,
                "tags": list(gpu.tags),
                "group": gpu.group,
                "judged": states.get(place) or None,
                "runs": list(gpu.runs),
            }
            for place, gpu in enumerate(fleet.gpus)
        ],
        "figures": [
            {
                "labels": dict(fleet.figures[spread.figure].labels),
                "figure": fleet.figures[spread.figure].name,
                "unit": fleet.figures[spread.figure].value.unit,
                "group": spread.group,
                "gpus": spread.gpus,
                "quantiles": list(spread.quantiles),
            }
            for spread in fleet.spreads()
        ],
    }


def _outlier(fleet: Fleet, one: Outlier) -> dict[str, Any]:
    gpu = fleet.gpus[one.place]
    return {
        "host": gpu.host,
        "device": gpu.device,
        "gpu": gpu.gpu or None,
        "change": one.change,
        "what": one.words,
        "why": [{"key": key, "here": own, "others": usual} for key, own, usual in one.why],
        "chance": one.chance,
        "figures": len(one.figures),
        "runs": list(gpu.runs),
    }


def csv_lines(fleet: Fleet) -> Iterator[bytes]:
    """A row each GPU: who it is, how it was judged, and the figures that stand for their cells, in SI units."""
    states = _states(fleet)
    heads = ["host", "gpu", "device", "tags", "group", "judged", "runs"]
    yield _csv([*heads, *(fleet.figures[at].words for at in fleet.firsts)])
    for place, gpu in enumerate(fleet.gpus):
        own = [gpu.host, gpu.gpu, gpu.device, " ".join(gpu.tags), gpu.group, states.get(place, ""), " ".join(gpu.runs)]
        yield _csv([*map(csv_cell, own), *(f"{value:.6g}" for value in fleet.values[place, fleet.firsts])])


def _csv(cells: Sequence[Any]) -> bytes:
    line = io.StringIO()
    csv.writer(line).writerow(["" if cell == "nan" else cell for cell in cells])
    return line.getvalue().encode()


def check_suffix(path: Path) -> None:
    """Refuse a file of another format, before anything begins."""
    if path.suffix.lower() not in (".html", ".csv", ".json"):
        raise BadInput("the suffix tells the format of a fleet's report; there are: .html, .csv, .json")


def write_fleet(path: Path, fleet: Fleet, label: str | None = None) -> None:
    """Write it to a file that is not there yet: .html, .csv or .json.

    Raises:
        BadInput: another suffix.
    """
    check_suffix(path)
    write_new(path, [render(fleet, path.suffix.lower(), label)])


def render(fleet: Fleet, suffix: str, label: str | None = None) -> bytes:
    """It as such a file."""
    if suffix == ".html":
        html = import_module("pinscope.report.html")  # by name: Jinja and Plotly take a fifth of a second
        return cast("bytes", html.fleet_html(fleet, label))
    return b"".join(csv_lines(fleet)) if suffix == ".csv" else document_bytes(fleet)


def document_bytes(fleet: Fleet) -> bytes:
    """The document as a file."""
    return (json.dumps(fleet_document(fleet), ensure_ascii=False, allow_nan=False) + "\n").encode()


def fleet_baseline(store: Store, fleets: Sequence[Fleet]) -> Baseline:
    """The fleet's own figures, of its largest group, without those that are worse.

    Raises:
        BadInput: too few GPUs are alike.
    """
    return Baseline(format=BASELINE_FORMAT, experiments=tuple(_kept(store, fleet) for fleet in fleets))


def _kept(store: Store, fleet: Fleet) -> KeptRuns:
    states = _states(fleet)
    usual = [place for place, gpu in enumerate(fleet.gpus) if gpu.group == 0 and not states.get(place)]
    if not usual:
        raise BadInput(f"too few GPUs with runs of {fleet.experiment} are alike for a baseline of the fleet")
    steps = np.linspace(0, len(usual) - 1, min(BASELINE_GPUS, len(usual))).round().astype(int)
    chosen = [usual[step] for step in steps]
    cells: dict[tuple[Any, ...], KeptCell] = {}
    for at, figure in enumerate(fleet.figures):
        values = [_known(value) for value in fleet.values[chosen, at]]
        known = sorted(value for value in values if value is not None)
        if not known:
            continue
        middle = known[len(known) // 2]
        kept = KeptFigure(
            median=middle,
            unit=figure.value.unit,
            spread=(known[-1] - known[0]) / abs(middle) if middle else 0.0,
            runs=tuple(None if value is None else (float(f"{value:.6g}"), None) for value in values),
        )
        key = (figure.kind, *figure.labels.values())
        figures = {**(cells[key].figures if key in cells else {}), figure.name: kept}
        cells[key] = KeptCell(kind=figure.kind, labels=figure.labels, figures=figures)
    first = store.run(fleet.gpus[chosen[0]].runs[0])
    run = first.model_copy(update={"figure": None, "verdict": None, "attachments": (), "notes": ()})
    return KeptRuns(runs=tuple(fleet.gpus[place].runs[0] for place in chosen), run=run, cells=tuple(cells.values()))
