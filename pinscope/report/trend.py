"""A figure over stored runs: which runs are one series, their figures, and the answer as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pinscope.analysis.read_rows import grouped
from pinscope.analysis.trend import Point, Trend, known_value, series_key, trend, verdict
from pinscope.errors import BadInput
from pinscope.experiments.registry import find_reader, read_run, readers
from pinscope.probes.environment import machine_id
from pinscope.records.run import Quantity, Run
from pinscope.store.store import Store
from pinscope.text import quoted

FORMAT = 1
"""Version of the document; additive changes keep it."""


@dataclass(frozen=True)
class TrendOfRuns:
    """A trend, and what is not in it.

    Attributes:
        trend: the figure over the series.
        others: finished runs of the experiment that are of another series: machine, lab or parameters.
        without: ids of runs of the series in which it is not known.
    """

    trend: Trend
    others: int
    without: Sequence[str]

    @property
    def left_out(self) -> str:
        """Which runs say nothing of the figure, in words; empty where all do."""
        more = f" and {len(self.without) - 3} more" if len(self.without) > 3 else ""
        ids = ", ".join(self.without[:3])
        return f"left out, as the figure is not known there: {ids}{more}" if ids else ""


def trend_of(store: Store, experiment: str, figure: str | None = None, like: str | None = None) -> TrendOfRuns:
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
    chosen = [next((own for own in _headline(store, run, figure) if figure in (None, own.key)), None) for run in runs]
    pairs = list(zip(runs, chosen, strict=True))
    known = [(run, own, value) for run, own in pairs if own and (value := known_value(own)) is not None]
    if not known:
        if unknown := next(filter(None, reversed(chosen)), None):
            raise BadInput(f"{unknown.name}: not known in any run of this series ({unknown.reason or 'no number'})")
        keys = ", ".join(figures(store, runs[-1]))
        raise BadInput(f"no run has the figure {quoted(figure or 'that stands first')}; there are: {keys}")
    course = trend(known[-1][1], [Point(run, value) for run, _, value in known])
    without = [run.id for run, own in pairs if known_value(own) is None]
    return TrendOfRuns(course, sum(map(len, alike)) - len(runs), without)


def series(store: Store, experiment: str | None = None, recordings: bool = False) -> dict[str, list[list[Run]]]:
    """Experiment → the series of finished runs, each from its oldest run on; the series with the newest run first,
    those of this machine before others. Recordings are left out, unless they are asked for."""
    known = {reader.name for reader in readers()}
    there = store.each_run(experiment=experiment, status="done", recordings=recordings)
    runs = sorted((run for run in there if run.experiment in known), key=lambda run: (run.created_at, run.id))
    alike = list(grouped(runs, lambda run: str(series_key(run))).values())
    alike.sort(key=lambda some: some[-1].created_at, reverse=True)
    alike.sort(key=lambda some: some[-1].environment.machine_id != machine_id())
    return grouped(alike, lambda some: some[0].experiment)


def figures(store: Store, run: Run) -> dict[str, str]:
    """Key → name of the figures of a run that can be followed."""
    headline = read_run(run, store.observations(run.id)).headline
    known = {own.key: own.name for own in headline if own.key and known_value(own) is not None}
    return known or ({run.figure.key: run.figure.name} if run.figure and run.figure.key else {})


def _headline(store: Store, run: Run, key: str | None) -> Sequence[Quantity]:
    """The first figure, which is stored with the run, where that is the one; else what is read of its rows."""
    if run.figure is not None and key in (None, run.figure.key):
        return (run.figure,)
    return read_run(run, store.observations(run.id)).headline


def trend_document(runs: TrendOfRuns) -> dict[str, Any]:
    """``{"format", "experiment", "figure", "runs", "steps" …}``: values in SI units; later versions may add keys."""
    course = runs.trend
    first = course.points[0].run
    return {
        "format": FORMAT,
        "experiment": course.experiment,
        "figure": course.figure.key,
        "name": course.figure.name,
        "unit": course.figure.unit,
        "lab": first.lab,
        "host": first.environment.host,
        "verdict": verdict(course),
        "runs": [
            {"id": point.run.id, "created_at": point.run.created_at.isoformat(), "value": point.value}
            for point in course.points
        ],
        "steps": [
            {
                "run": step.run.id,
                "place": step.place,
                "before": step.before,
                "after": step.after,
                "ratio": step.ratio,
                "changed": [asdict(key) for key in step.changed],
            }
            for step in course.steps
        ],
        "other_runs": runs.others,
        "without_figure": list(runs.without),
    }
