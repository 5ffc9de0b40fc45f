"""The table of all recorded runs: what pages call each, where it was measured, and how to open it."""

from __future__ import annotations

from pinscope.report.facts import place
from pinscope.store.recordings import recorded_runs, recording_name


def recordings_table() -> str:
    """One row a recording, by name, as Markdown."""
    lines = ["| recorded run | measured on | day | open it with |", "| --- | --- | --- | --- |"]
    for run in sorted(recorded_runs(), key=recording_name):
        link = f"[{recording_name(run)}](experiments/{run.experiment}.md)"
        lines.append(f"| {link} | {place(run)} | {run.created_at:%Y-%m-%d} | `pinscope runs show {run.id}` |")
    return "\n".join(lines)
