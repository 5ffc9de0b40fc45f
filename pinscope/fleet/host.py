"""What a campaign asks of a host: who it is, and a run on one of its GPUs. Carried out in the host's Dask worker."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from distributed import get_worker

from pinscope.errors import PinScopeError
from pinscope.experiments.registry import run_figures
from pinscope.probes.environment import capture_environment
from pinscope.records.run import LabKind
from pinscope.runner import jobs
from pinscope.store.bundle import render_bundle, this_version
from pinscope.store.store import Store

LOOK_SECONDS = 0.2
"""How soon the end of a run, and a campaign that ends, is noticed."""


@dataclass
class Standing:
    """For which host this process stands."""

    name: str | None = None
    """What its runs call their host; ``None``: as the kernel calls it."""
    share: tuple[int, int] = (0, 1)
    """Its place among the workers that share this machine's GPUs, and how many they are."""
    ended: set[str] = field(default_factory=set)
    """Campaigns for which nothing is measured any more."""


HERE = Standing()


def describe(lab: LabKind) -> dict[str, Any]:
    """Which host and PinScope this is, and which GPUs it measures: values that any version can read."""
    environment = capture_environment()
    place, sharing = HERE.share
    gpus = [gpu.index for gpu in environment.devices][place::sharing] if lab == "cuda" else []
    known = this_version()
    return {
        "host": HERE.name or environment.host,
        "machine": environment.machine_id,
        "version": known.version,
        "commit": known.commit,
        "gpus": gpus or [0],  # where there is none, the run says why
    }


def measure(campaign: str, asked: Mapping[str, Any], limit_seconds: float) -> dict[str, Any]:
    """A run as any other on this host: it queues for its GPU, is budgeted, and measured by a child of its own.

    Args:
        campaign: its name; :func:`end` ends the run.
        asked: fields of a :class:`~pinscope.runner.jobs.Request`.
        limit_seconds: how long it may take, its turn in the queue included.

    Returns:
        The run as a ``bundle``, cancelled where it was ended at its limit; or why there is none (``refused``).
    """
    try:
        environment = capture_environment()
        if HERE.name:
            environment = environment.model_copy(update={"host": HERE.name})
        run = jobs.prepare(jobs.Request(**asked), environment)
        with (
            tempfile.TemporaryDirectory(prefix="run-", dir=get_worker().local_directory) as folder,
            Store(f"sqlite:///{folder}/run.sqlite") as store,
        ):
            deadline = time.monotonic() + limit_seconds
            with jobs.running(store, run) as job:
                while campaign not in HERE.ended and time.monotonic() < deadline and job.child.poll() is None:
                    time.sleep(LOOK_SECONDS)
            ended, rows, _ = jobs.ended_run(store, run.id)
            whole = ended.model_copy(update={"figures": run_figures(ended, rows)})
            return {"bundle": render_bundle([(whole, rows)], store.parts)}
    except PinScopeError as error:
        return {"refused": str(error)}


def end(campaign: str) -> None:
    """Measure nothing more for a campaign; the run that goes on is ended."""
    HERE.ended.add(campaign)
