"""Two timelines: what was pinned at most, and who held it."""

from __future__ import annotations

from pinscope.analysis.comparison import Comparison, Side, compare
from pinscope.experiments.registry import measured_run, verdict_of
from pinscope.store.recordings import recorded_observations, recorded_runs


def compared(left_out: str) -> Comparison:
    """The recorded timeline, and itself without what concerns a process."""
    (run,) = (run for run in recorded_runs() if run.experiment == "timeline")
    rows = recorded_observations(run.id)
    most = max((row["bytes"] for row in rows if row.get("name") == left_out and row.get("bytes")), default=0)
    rest = [
        {**row, "pinned_bytes": max(row["pinned_bytes"] - most, 0)} if row["kind"] == "host" else row
        for row in rows
        if row.get("name") != left_out
    ]
    runs = [measured_run(run.model_copy(update={"id": name}), some) for name, some in (("a", rest), ("b", rows))]
    return compare(Side("A", runs[:1]), Side("B", runs[1:]))


def test_the_process_that_came_stands_beside_what_more_was_pinned() -> None:
    more = "At most 5.34 GiB was pinned instead of 348 MiB: python3 had 5.00 GiB more."
    assert verdict_of(compared("python3")) == more


def test_equal_timelines_are_the_same() -> None:
    timelines = compared("nobody")
    assert verdict_of(timelines).startswith("No difference: at most 5.34 GiB")
    assert timelines.shown == []
