"""How fast pinned memory is copied and small pieces are gathered on this machine, as its runs say, or recordings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pinscope.errors import BadInput
from pinscope.experiments.bandwidth.reading import Copies
from pinscope.experiments.registry import checked_rows
from pinscope.experiments.scatter.reading import Scatter
from pinscope.records.environment import Environment
from pinscope.records.run import ExperimentRun
from pinscope.store.store import Store


def pinned_rates(store: Store, environment: Environment) -> dict[str, Any]:
    """Parameters of a trace: bytes per second of large pinned copies to and from the GPU, of pageable ones to it, and
    of pieces that one thread gathers in a pinned buffer and copies together; and where these come from.

    The newest run of this machine counts; else the recording of the same model of GPU, else the newest recording.

    Raises:
        StoreFailed: the database cannot be read.
    """
    return {**_copying(store, environment), **_gathering(store, environment)}


def _copying(store: Store, environment: Environment) -> dict[str, Any]:
    for run in _nearest(store, environment, "bandwidth"):
        try:
            copies = Copies(run, checked_rows(run.experiment, store.observations(run.id)))
            rates = {
                f"{memory}_{direction}": curve[-1].bytes_per_second
                for memory, direction in (("pinned", "h2d"), ("pinned", "d2h"), ("pageable", "h2d"))
                if (curve := copies.engine(memory, direction))
            }
        except (BadInput, ArithmeticError):  # an imported run may hold anything
            continue
        if rates.keys() - {"pageable_h2d"}:
            return {**rates, "pinned_from": _origin(run)}
    return {}


def _gathering(store: Store, environment: Environment) -> dict[str, Any]:
    for run in _nearest(store, environment, "scatter"):
        rows = [row for row in store.observations(run.id) if row.get("way") == "cpu" and row.get("threads") == 1]
        try:
            gathered = Scatter.of(checked_rows(run.experiment, rows)).cells
        except (BadInput, ArithmeticError):  # as above
            continue
        rates = {
            direction: {
                cell.bytes: cell.bytes_per_second
                for cell in gathered
                if (cell.direction, cell.layout) == (direction, "scattered")
            }
            for direction in ("h2d", "d2h")
        }
        sizes = sorted(rates["h2d"].keys() & rates["d2h"].keys())
        if sizes:
            given = {f"gathered_{direction}": [rates[direction][size] for size in sizes] for direction in rates}
            return {"gathered_bytes": sizes, **given, "gathered_from": _origin(run)}
    return {}


def _origin(run: ExperimentRun) -> str:
    gpu = run.gpu.name if run.gpu else "an unknown GPU"
    return f"recording on {gpu}" if run.recording else f"run {run.id} on this machine"


def _nearest(store: Store, environment: Environment, experiment: str) -> Iterator[ExperimentRun]:
    runs = [
        run
        for run in store.each_run(experiment=experiment, lab="cuda")
        if isinstance(run, ExperimentRun) and run.observations
    ]
    here = [run for run in runs if not run.recording and run.environment.machine_id == environment.machine_id]
    models = {device.name for device in environment.devices}
    recordings = [run for run in runs if run.recording]
    yield from here
    yield from sorted(recordings, key=lambda run: run.gpu is None or run.gpu.name not in models)
