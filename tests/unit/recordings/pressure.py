"""Headline of ``pressure`` again: what each pinned byte took from everybody, and what was felt of it."""

from __future__ import annotations

import numpy as np

from pinscope.units import format_bytes
from tests.unit.recordings.raw import Recorded

GIB = 2**30


def headline(recorded: Recorded) -> dict[str, object]:
    rows = recorded.rows
    rounds = recorded.counted[recorded.counted["kind"] == "process"]
    ends = rows[(rows["moment"] == "end") & (rows["phase"] != "after")]
    reachable = ends["available_bytes"] + ends["per_cpu_bytes"].fillna(0)
    before = rounds[rounds["phase"] == "before"]["fault_median_seconds"].median()
    held = rounds[rounds["phase"] == "held"]
    faults = held.groupby("bytes")["fault_median_seconds"].median()
    steps = rows[(rows["kind"] == "host") & (rows["phase"] == "held")].groupby("step")
    stalled = steps["memory_some_seconds"].agg(np.ptp) / steps["elapsed_seconds"].agg(np.ptp)
    limits = recorded.run["environment"]["limits"]
    group, host = limits["cgroup_limit_bytes"], limits["host_total_bytes"]
    owner, whole = ("control group's", group) if group and group < host else ("host's", host)
    return {
        f"Most memory pinned, share of the {owner} memory": held["bytes"].max() / whole,
        "Available memory lost per pinned GiB": -np.polyfit(ends["bytes"], reachable, 1)[0] * GIB,
        "Most memory pinned": held["bytes"].max(),
        "Page fault before pinning": before,
        f"Page fault time with {format_bytes(int(faults.idxmax()))} pinned (the slowest step) ÷ before": faults.max()
        / before,
        "Least share of the test file in the page cache": (held["file_cached_bytes"] / held["file_bytes"]).min(),
        "Longest stall for memory, share of a step's time": stalled.max(),
    }
