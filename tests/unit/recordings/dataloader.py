"""Headline of ``dataloader`` again: the fastest settings by steps over the time that all of them took."""

from __future__ import annotations

from tests.unit.recordings.raw import Recorded


def headline(recorded: Recorded) -> dict[str, object]:
    by_settings = recorded.counted.groupby(["pin_memory", "non_blocking", "workers"])
    mean = by_settings[["step_seconds", "stall_seconds", "wait_seconds"]].mean()
    pin, asynchronous, workers = best = mean["step_seconds"].idxmin()
    fastest = mean.loc[best]
    words = f"{'pinned' if pin else 'pageable'}, {'non_blocking' if asynchronous else 'blocking'}, {workers} workers"
    return {
        "Fastest": words,
        "Its steps a second": 1 / fastest["step_seconds"],
        "× pageable and blocking": mean["step_seconds"].loc[False, False, workers] / fastest["step_seconds"],
        "GPU idle, of a step": fastest["stall_seconds"] / fastest["step_seconds"],
        "Waiting for the loader, of a step": fastest["wait_seconds"] / fastest["step_seconds"],
        "Pinned for it": by_settings["pinned_bytes"].last()[best],
    }
