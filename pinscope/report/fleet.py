"""A fleet read from the store, and as tables, JSON, CSV and files."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from operator import add
from typing import Any, cast

import numpy as np

from pinscope.analysis.check import Baseline, baseline_of
from pinscope.analysis.comparison import Measured, change_words
from pinscope.analysis.outliers import LEAST_GROUP, NEWEST, Fleet, Gpu, Outlier, Spread, fleet_of
from pinscope.errors import BadInput, PinScopeError
from pinscope.experiments.registry import measured_run, run_figures
from pinscope.records.run import LabKind, Table, table
from pinscope.report.write import csv_lines
from pinscope.store.figures import runs_without_figures, stored_figures
from pinscope.store.store import Store
from pinscope.text import first_of
from pinscope.units import format_count, format_value

FORMAT = 1
"""Version of the document; additive changes keep it."""
MOST_ROWS = 100
"""GPUs in a table, those that are worse first; files of numbers have all."""
FEW = 30
"""Of fewer GPUs even a link at half width is often not told from chance (docs/fleet.md)."""
BASELINE_GPUS = 16
"""Whose figures a baseline of the fleet has."""
QUANTILES = ("least", "a quarter", "median", "three quarters", "most")
STATES = {"outlier": "worse", "suspect": "worse once", "alone": "too few alike", "": ""}


def read_fleet(store: Store, experiment: str, lab: LabKind = "cuda", say: Callable[[str], object] = str) -> Fleet:
    """The newest runs of an experiment on each GPU.

    Runs of an older PinScope, which kept no figures, are read anew, once.

    Args:
        store: has the runs.
        experiment, lab: of them.
        say: takes a line that says what takes long.

    Raises:
        BadInput: there is no finished run of it.
    """
    if old := runs_without_figures(store, experiment, lab):
        say(f"reading {format_count(len(old), 'run')} that an older PinScope stored")
    for run_id in old:
        with suppress(PinScopeError):  # what cannot be read is left out; opening the run says why
            if figures := run_figures(store.run(run_id), store.observations(run_id)):
                store.update(run_id, figures=figures)
    return fleet_of(experiment, lab, *stored_figures(store, experiment, lab, NEWEST))


def verdict(fleet: Fleet) -> str:
    """One sentence."""
    count, gpus = len(fleet.outliers), len(fleet.gpus)
    of = format_count(gpus, "GPU" if fleet.gpus[0].newest.gpu else "host")
    again = f"; {len(fleet.suspects)} more in one run only: run them again" if fleet.suspects else ""
    if len(fleet.alone) == gpus:
        return f"{of}: too few to say which is worse, {LEAST_GROUP} must be alike; compare two: pinscope compare A B."
    if not count:
        few = ", as far as so few tell" if gpus < FEW else ""
        return f"None of {of} is worse than others like it{few}{again}."
    worst = fleet.outliers[0]
    return (
        f"{count} of {of} {'is' if count == 1 else 'are'} worse than others like them, "
        f"{worst.gpu.words} by up to {change_words(worst.change)}{again}."
    )


def outlier_table(fleet: Fleet, label: str | None = None) -> Table:
    """Those that are worse, then those that were so once: what, and why."""
    labels = [label] if label else []
    rows = []
    for outlier in (*fleet.outliers, *fleet.suspects):
        gpu = outlier.gpu
        own = gpu.words, *map(gpu.label, labels), change_words(outlier.change)
        rows.append((*own, outlier.words, outlier.why_words, gpu.runs[0]))
    columns = dict.fromkeys(["GPU", *labels, "worse by up to", "what", "why", "newest run"], "text")
    return table("Worse than others like them", columns, rows)


def gpu_table(fleet: Fleet, label: str | None = None) -> Table:
    """One row a GPU, the worst first, with the figure in which most are out."""
    first, labels = fleet.most_out[0], [label] if label else []
    rows = list[list[str | float | None]]()
    for place in fleet.order[:MOST_ROWS]:
        gpu, state, value = fleet.gpus[place], STATES[fleet.states.get(place, "")], float(fleet.values[place, first])
        rows.append([gpu.words, *map(gpu.label, labels), gpu.group + 1, len(gpu.runs), state])
        rows[-1] += [value if math.isfinite(value) else None, gpu.runs[0]]
    columns = {"GPU": "text", **dict.fromkeys(labels, "text"), "group": "count", "runs": "count", "judged": "text"}
    columns |= {fleet.figures[first].full_words: fleet.figures[first].value.unit, "newest run": "text"}
    left = max(len(fleet.gpus) - MOST_ROWS, 0)
    groups = "; ".join(f"{number}: {words}" for number, words in enumerate(fleet.groups[:4], start=1))
    note = f"Groups of like hardware: {groups}." + (f" {left:,} more are in the CSV file." if left else "")
    return table("GPUs", columns, rows, note=note)


def spread_table(fleet: Fleet) -> Table:
    """How each figure is spread, and who is out in it."""
    rows = list[list[str | int]]()
    for spread in fleet.spreads:
        figure = fleet.figures[spread.figure]
        worse = first_of([outlier.gpu.words for outlier in fleet.outliers if spread.figure in outlier.figures])
        quantiles = (format_value(value, figure.value.unit) for value in spread.quantiles)
        rows.append([figure.full_words, spread.group + 1, spread.gpus, *quantiles, worse])
    columns = {"figure": "text", "group": "count", "GPUs": "count", **dict.fromkeys(QUANTILES, "text")}
    return table("Figures over the fleet", {**columns, "worse": "text"}, rows)


def fleet_document(fleet: Fleet) -> dict[str, Any]:
    """``{"format", "experiment", "verdict", "outliers", "gpus" …}``; later versions may add keys."""
    return {
        "format": FORMAT,
        "experiment": fleet.experiment,
        "lab": fleet.lab,
        "verdict": verdict(fleet),
        "groups": fleet.groups,
        "outliers": [_outlier(outlier) for outlier in fleet.outliers],
        "suspects": [_outlier(suspect) for suspect in fleet.suspects],
        "gpus": _gpus(fleet),
        "figures": [_spread(fleet, spread) for spread in fleet.spreads],
    }


def _spread(fleet: Fleet, spread: Spread) -> dict[str, Any]:
    figure, (group, _, quantiles, gpus) = fleet.figures[spread.figure], spread
    what = {"labels": dict(figure.labels), "figure": figure.figure, "unit": figure.value.unit}
    return {**what, "group": group, "gpus": gpus, "quantiles": quantiles}


def _gpus(fleet: Fleet) -> list[dict[str, Any]]:
    return [
        {**_gpu(gpu), "group": gpu.group, "judged": fleet.states.get(place)} for place, gpu in enumerate(fleet.gpus)
    ]


def _outlier(outlier: Outlier) -> dict[str, Any]:
    return {
        **_gpu(outlier.gpu),
        "change": outlier.change,
        "what": outlier.words,
        "why": [{"key": key, "here": own, "others": usual} for key, own, usual in outlier.why],
        "chance": outlier.chance,
        "figures": len(outlier.figures),
    }


def _gpu(gpu: Gpu) -> dict[str, Any]:
    own, tags = gpu.newest, [*filter(None, gpu.newest.tags.split(","))]
    return {"host": own.host, "gpu": own.gpu or None, "device": own.device, "runs": gpu.runs, "tags": tags}


def _csv(fleet: Fleet) -> Iterator[bytes]:
    """A row each GPU: who it is, how it was judged, and the figures that stand for their cells, in SI units."""
    gpus, values = _gpus(fleet), fleet.values[:, fleet.firsts].tolist()
    figures = ([f"{value:.6g}" if math.isfinite(value) else None for value in own] for own in values)
    own = ([" ".join(value) if isinstance(value, list) else value for value in gpu.values()] for gpu in gpus)
    columns = [*gpus[0], *(fleet.figures[at].full_words for at in fleet.firsts)]
    return csv_lines(columns, map(add, own, figures))


SUFFIXES = (".html", ".csv", ".json")
"""Formats of a report of a fleet."""


def render(fleet: Fleet, suffix: str, label: str | None = None) -> bytes:
    """It as such a file."""
    if suffix == ".html":
        html = import_module("pinscope.report.html")  # by name: Jinja and Plotly take a fifth of a second
        return cast("bytes", html.fleet_html(fleet, label))
    if suffix == ".csv":
        return b"".join(_csv(fleet))
    return (json.dumps(fleet_document(fleet), ensure_ascii=False, allow_nan=False) + "\n").encode()


def fleet_baseline(store: Store, fleets: Sequence[Fleet]) -> Baseline:
    """Newest runs of GPUs of each fleet's largest group that are not worse, as far as they have the same parameters.

    Raises:
        BadInput: too few GPUs are alike.
    """
    return baseline_of((run for fleet in fleets for run in _usual_runs(store, fleet)), one_machine=False)


def _usual_runs(store: Store, fleet: Fleet) -> Iterator[Measured]:
    usual = [gpu.runs[0] for place, gpu in enumerate(fleet.gpus) if gpu.group == 0 and place not in fleet.states]
    if not usual:
        raise BadInput(f"too few GPUs with runs of {fleet.experiment} are alike for a baseline of the fleet")
    steps = np.linspace(0, len(usual) - 1, min(BASELINE_GPUS, len(usual))).round().astype(int)
    runs = [store.run(usual[step]) for step in steps]
    return (measured_run(run, store.observations(run.id)) for run in runs if run.params == runs[0].params)
