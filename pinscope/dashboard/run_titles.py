"""What runs and experiments are called; loads no more than that needs."""

from __future__ import annotations

from pinscope.errors import UnknownName
from pinscope.experiments.registry import find_reader
from pinscope.records.run import LAB_TITLES, Run


def experiment_title(name: str) -> str:
    """The experiment's title, or its bare name if this version does not know it."""
    try:
        return find_reader(name).kind.title
    except UnknownName:
        return name


def title(run: Run) -> str:
    """``Bandwidth · NVIDIA H200``; for a run without a GPU the host model or the live view."""
    return f"{experiment_title(run.experiment)} · {run.gpu.name if run.gpu else LAB_TITLES[run.lab]}"
