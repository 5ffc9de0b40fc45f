"""How fast pinned memory is copied on this machine, as its runs of ``bandwidth`` say, or else a recording."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pinscope.errors import BadInput
from pinscope.experiments.bandwidth.arithmetic import by_line, cells, curve_of
from pinscope.experiments.registry import checked_rows
from pinscope.records.environment import Environment
from pinscope.records.run import ExperimentRun
from pinscope.store.store import Store


def pinned_rates(store: Store, environment: Environment) -> dict[str, Any]:
    """Parameters of a trace: bytes per second of large pinned copies to and from the GPU, and where that comes from.

    The newest run of this machine counts; else the recording of the same model of GPU, else the newest recording.

    Raises:
        StoreFailed: the database cannot be read.
    """
    for run in _telling(store, environment):
        try:
            curves = by_line(cells(checked_rows(run.experiment, store.observations(run.id))))
        except (BadInput, ArithmeticError):  # an imported run may hold anything
            continue
        rates = {
            f"pinned_{direction}": curve[-1].bytes_per_second
            for direction in ("h2d", "d2h")
            if (curve := curve_of(curves, "pinned", direction))
        }
        if rates:
            gpu = run.gpu.name if run.gpu else "an unknown GPU"
            origin = f"recording on {gpu}" if run.recording else f"run {run.id} on this machine"
            return {**rates, "pinned_from": origin}
    return {}


def _telling(store: Store, environment: Environment) -> Iterator[ExperimentRun]:
    runs = [
        run for run in store.each_run(experiment="bandwidth", lab="cuda")
        if isinstance(run, ExperimentRun) and run.observations
    ]  # fmt: skip
    here = [run for run in runs if not run.recording and run.environment.machine_id == environment.machine_id]
    models = {device.name for device in environment.devices}
    recordings = [run for run in runs if run.recording]
    yield from here
    yield from sorted(recordings, key=lambda run: run.gpu is None or run.gpu.name not in models)
