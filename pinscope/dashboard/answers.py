"""What Home answers with, before any run is opened: for its page, and for the text that stands before the page does."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from pinscope.dashboard.plain import sentence
from pinscope.records.environment import Device, Environment
from pinscope.records.run import Run
from pinscope.store.recordings import recorded_runs
from pinscope.store.store import Store

LATEST = 3
"""Own runs that Home shows; the Runs page has all."""
IN_CARDS = ("bandwidth", "overlap", "page_tables")
"""Experiments that a GPU's card answers: what pinning brings, what it takes to use it, and what it costs."""
STEPS = ("bandwidth", "overlap", "pinning_strategy", "page_tables", "timeline")
"""What pinning brings, what it takes to use it, how to pin, what it costs, and who holds it."""
NO_GPU = "No GPU on this machine"
TOUR_NOTE = "Each answer comes from a run that ships with PinScope. It was measured on the machine that it names."
_LOOKED_AT = 60
"""The newest runs of an experiment among which those of the GPUs here are looked for."""
Measured = Mapping[str, Run]
"""Experiment → its newest run on a GPU."""


def why_no_gpu(environment: Environment) -> str:
    """Why none is found, and what there is instead."""
    reason = environment.missing.get("devices", "no NVIDIA driver answers")
    return (
        f"{sentence(reason)} The runs below were recorded on GPU hosts. Experiments here run on the host model: in "
        "host memory, without a GPU."
    )


def latest_runs(store: Store) -> list[Run]:
    """The newest runs of this database's own."""
    return list(islice(store.each_run(recordings=False), LATEST))


def newest_runs(store: Store, gpu: Device) -> dict[str, Run]:
    """The newest run of each experiment that measured this very GPU to the end."""
    found = {}
    for name in IN_CARDS:
        runs = islice(store.each_run(experiment=name, lab="cuda", status="done", recordings=False), _LOOKED_AT)
        run = next((run for run in runs if run.gpu and run.gpu.uuid == gpu.uuid), None)
        if run is not None:
            found[name] = run
    return found


def newest_recordings() -> dict[str, Run]:
    """Experiment → its newest recording."""
    return {run.experiment: run for run in reversed(recorded_runs())}


def tour_runs() -> dict[str, Run]:
    """The recordings of the tour, in its order."""
    there = newest_recordings()
    return {name: there[name] for name in STEPS if name in there}


def tour_heading(steps: Mapping[str, Run]) -> str:
    """What the tour is called."""
    return f"Pinned memory in {len(steps)} steps"
