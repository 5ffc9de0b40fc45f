"""The table of all experiments: what each asks, whether it needs a GPU, and what its recorded run took."""

from __future__ import annotations

from pinscope.experiments.registry import EXPERIMENTS
from pinscope.records.run import ExperimentRun, Run
from pinscope.store.recordings import recorded_runs
from pinscope.units import format_bytes, format_seconds

RECORDED_ON = "NVIDIA H200"
"""The GPU whose recorded runs are shown."""


def experiments_table() -> str:
    """One row an experiment, as Markdown."""
    lines = [
        f"| experiment | question | without a GPU | took, on the recorded {RECORDED_ON[7:]} | pinned at most |",
        "| --- | --- | --- | --- | --- |",
    ]
    recorded = {run.experiment: run for run in recorded_runs() if run.gpu and run.gpu.name == RECORDED_ON}
    for entry in EXPERIMENTS:
        experiment, run = entry.experiment, recorded.get(entry.name)
        without = "no" if experiment.labs.get("host") else "yes"
        link = f"[{experiment.name}](experiments/{experiment.name}.md)"
        pinned = format_bytes(run.budget.pinned_bytes) if isinstance(run, ExperimentRun) else ""
        lines.append(f"| {link} | {experiment.question} | {without} | {_took(run) if run else ''} | {pinned} |")
    return "\n".join(lines)


def _took(run: Run) -> str:
    return format_seconds((run.finished_at - run.created_at).total_seconds() if run.finished_at else None)
