"""The table of all experiments: what each asks, whether it needs a GPU, and what its recorded run took."""

from __future__ import annotations

from pinscope.experiments.registry import EXPERIMENTS
from pinscope.records.run import ExperimentRun
from pinscope.store.recordings import recorded_runs
from pinscope.units import format_bytes, format_seconds

RECORDED_ON = "NVIDIA H200"
"""The GPU whose recorded runs are told."""


def experiments_table() -> str:
    """One row an experiment, as Markdown."""
    lines = [
        f"| experiment | question | without a GPU | took, on the recorded {RECORDED_ON[7:]} | pinned at most |",
        "| --- | --- | --- | --- | --- |",
    ]
    for entry in EXPERIMENTS:
        experiment = entry.experiment
        without = "no" if experiment.labs.get("host") else "yes"
        link = f"[{experiment.name}](experiments/{experiment.name}.md)"
        lines.append(f"| {link} | {experiment.question} | {without} | {' | '.join(_recorded(experiment.name))} |")
    return "\n".join(lines)


def _recorded(name: str) -> tuple[str, str]:
    """How long the recorded run took and what it was allowed to pin, or nothing of one that has none."""
    for run in recorded_runs():
        if isinstance(run, ExperimentRun) and run.experiment == name and run.gpu and run.gpu.name == RECORDED_ON:
            took = (run.finished_at - run.created_at).total_seconds() if run.finished_at else None
            return format_seconds(took), format_bytes(run.budget.pinned_bytes)
    return "", ""
