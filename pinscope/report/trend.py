"""A figure over stored runs: which runs are one series, their figures, and the answer as JSON."""

from __future__ import annotations

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


def trend_of(store: Store, experiment: str, figure: str | None = None, like: str | None = None) -> Trend:
    """A figure over all finished runs that are like one.

    Args:
        store: has the runs.
        experiment: of all of them.
        figure: key of the figure in the headline; without it the first.
        like: run whose machine, lab and parameters the others have; without it the newest, on this machine if any.

    Raises:
        UnknownName: no such experiment or run.
        BadInput: no finished run, or none with that figure.
    """
    find_reader(experiment)
    named = store.run(like) if like else None
    alike = series(store, experiment, recordings=named is not None and named.recording).get(experiment)
    if not alike:
        raise BadInput(f"no finished run of {experiment}; make one: pinscope run {experiment}")
    key = series_key(named or alike[0][-1])
    runs = next((some for some in alike if series_key(some[0]) == key), None)
    if runs is None:
        raise BadInput(f"run {like} is no finished run of {experiment}")
    chosen = [_figure(store, run, figure) for run in runs]
    known = {run.id: own.number for run, own in zip(runs, chosen, strict=True) if own and own.number is not None}
    newest = next((own for own in reversed(chosen) if own), None)
    if newest is None:
        keys = ", ".join(figures(store, runs[-1]))
        raise BadInput(f"no run has the figure {quoted(figure or 'that stands first')}; there are: {keys}")
    if not known:
        raise BadInput(f"{newest.name}: not known in any run of this series ({newest.reason or 'no number'})")
    return Trend(
        newest,
        [run for run in runs if run.id in known],
        list(known.values()),
        others=sum(map(len, alike)) - len(runs),
        without=[run.id for run in runs if run.id not in known],
    )


def series(
    store: Store, experiment: str | None = None, recordings: bool = False, most: int | None = None
) -> dict[str, list[list[Run]]]:
    """Experiment → the series of finished runs, each from its oldest run on; the series with the newest run first,
    those of this machine before others. Recordings are left out, unless they are asked for; ``most``: as of the store's
    own."""
    known = {reader.name for reader in readers()}
    there = store.each_run(experiment=experiment, status="done", recordings=recordings, most=most)
    runs = sorted((run for run in there if run.experiment in known), key=lambda run: (run.created_at, run.id))
    alike = list(grouped(runs, lambda run: str(series_key(run))).values())
    alike.sort(key=lambda some: some[-1].created_at, reverse=True)
    alike.sort(key=lambda some: some[-1].environment.machine_id != machine_id())
    return grouped(alike, lambda some: some[0].experiment)


def figures(store: Store, run: Run) -> dict[str, str]:
    """Key → name of the figures of a run that can be followed."""
    headline = read_run(run, store.observations(run.id)).headline
    known = {own.key: own.name for own in headline if own.key and own.number is not None}
    return known or ({run.figure.key: run.figure.name} if run.figure and run.figure.key else {})


def _figure(store: Store, run: Run, key: str | None) -> Quantity | None:
    """The figure of that key, or the first: that which is stored with the run, where it is the one."""
    if run.figure is not None and key in (None, run.figure.key):
        return run.figure
    headline = read_run(run, store.observations(run.id)).headline
    return next((own for own in headline if key in (None, own.key)), None)


def trend_document(trend: Trend) -> dict[str, Any]:
    """``{"format", "experiment", "figure", "runs", "steps" …}``: values in SI units; later versions may add keys."""
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
        "other_runs": trend.others,
        "without_figure": trend.without,
    }
