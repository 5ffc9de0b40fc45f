"""A figure over stored runs: which runs are one series, their figures, and the answer as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pinscope.analysis.read_rows import grouped
from pinscope.analysis.trend import Trend, series_key, verdict
from pinscope.errors import BadInput
from pinscope.experiments.registry import find_reader, read_run, readers
from pinscope.probes.environment import machine_id
from pinscope.records.run import Quantity, Run
from pinscope.store.store import Store
from pinscope.text import quoted

FORMAT = 1
"""Version of the document; additive changes keep it."""


def series(store: Store, experiment: str | None = None, most: int | None = None) -> list[list[Run]]:
    """Finished runs that are alike, each series from its oldest run on; those of this machine before others, and of
    these the one with the newest run first. Recordings are left out; ``most``: no more than so many are looked at, the
    newest."""
    known = {reader.name for reader in readers()}
    there = store.each_run(experiment=experiment, status="done", recordings=False, most=most)
    runs = sorted((run for run in there if run.experiment in known), key=lambda run: (run.created_at, run.id))
    here = machine_id()
    alike = grouped(runs, series_key).values()
    return sorted(alike, key=lambda some: (some[-1].environment.machine_id == here, some[-1].created_at), reverse=True)


def runs_like(store: Store, experiment: str, like: str | None = None) -> tuple[list[Run], int]:
    """The series of one run, and how many finished runs of the experiment are of others.

    Args:
        store: has the runs.
        experiment: of all of them.
        like: that run; without it the newest, on this machine if any.

    Raises:
        UnknownName: no such experiment or run.
        BadInput: no finished run.
    """
    find_reader(experiment)
    named = store.run(like) if like else None
    known = series(store, experiment)
    alike = next((some for some in known if named is None or series_key(some[0]) == series_key(named)), None)
    if alike is None:
        which = f" is like {like}" if like else ""
        raise BadInput(f"no finished run of {experiment}{which}; make one: pinscope run {experiment}")
    return alike, sum(map(len, known)) - len(alike)


def trend_of(store: Store, runs: Sequence[Run], figure: str | None = None) -> Trend:
    """A figure over the runs of a series.

    Args:
        store: has the runs.
        runs: the oldest first.
        figure: key of the figure in the headline; without it the first.

    Raises:
        BadInput: no run with that figure.
    """
    chosen = [_figure(store, run, figure) for run in runs]
    newest = next(filter(None, reversed(chosen)), None)
    if newest is None:
        keys = ", ".join(figures(store, runs[-1]))
        raise BadInput(f"no run has the figure {quoted(figure or 'that stands first')}; there are: {keys}")
    known = {run.id: own.number for run, own in zip(runs, chosen, strict=True) if own and own.number is not None}
    if not known:
        raise BadInput(f"{newest.name}: not known in any run of this series ({newest.reason or 'no number'})")
    without = [run.id for run in runs if run.id not in known]
    return Trend(newest, [run for run in runs if run.id in known], list(known.values()), without)


def figures(store: Store, run: Run) -> dict[str, Quantity]:
    """Key → figure of the headline of a run: that which is stored with the run, then as they are read now."""
    headline = read_run(run, store.observations(run.id)).headline
    return {own.key: own for own in (run.figure, *headline) if own and own.key}


def _figure(store: Store, run: Run, key: str | None) -> Quantity | None:
    """The figure of that key, or the first: that which is stored with the run, where it is the one."""
    if run.figure is not None and key in (None, run.figure.key):
        return run.figure
    known = figures(store, run)
    return known.get(key or next(iter(known), ""))


def trend_document(trend: Trend, others: int) -> dict[str, Any]:
    """``{"format", "experiment", "figure", "runs", "steps" …}``: values in SI units; later versions may add keys.

    ``others``: finished runs of the experiment that are of another series: machine, lab or parameters.
    """
    first, pairs = trend.runs[0], zip(trend.runs, trend.values, strict=True)
    return {
        "format": FORMAT,
        "experiment": first.experiment,
        "figure": trend.figure.key,
        "name": trend.figure.name,
        "unit": trend.figure.unit,
        "lab": first.lab,
        "host": first.environment.host,
        "verdict": verdict(trend),
        "runs": [{"id": run.id, "created_at": run.created_at.isoformat(), "value": value} for run, value in pairs],
        "steps": [
            {**vars(step), "run": step.run.id, "ratio": step.ratio, "changed": [vars(key) for key in step.changed]}
            for step in trend.steps
        ],
        "other_runs": others,
        "without_figure": trend.without,
    }
