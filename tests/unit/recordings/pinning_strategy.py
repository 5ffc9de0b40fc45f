"""Headline of ``pinning_strategy`` again: the fast and gentle strategy, beside one cudaHostAlloc."""

from __future__ import annotations

from pinscope.units import format_bytes
from tests.unit.recordings.raw import Recorded

TITLES = {"thp_register_threads": "huge pages, threads touch, threads register chunks"}
WAITS = ["neighbour_info_seconds", "neighbour_nvml_seconds", "neighbour_kernel_seconds", "neighbour_allocation_seconds"]
NEAR = 1.5
"""Times that still count as as good."""


def headline(recorded: Recorded) -> dict[str, object]:
    by_strategy = recorded.counted.groupby("strategy")
    total, wait = by_strategy["total_seconds"].median(), by_strategy[WAITS].max().max(axis=1)
    pinning = total.drop("idle")
    fast = pinning[pinning <= NEAR * pinning.min()]
    gentle = fast[wait[fast.index] <= NEAR * wait[fast.index].min()]
    best, usual = gentle.idxmin(), "host_alloc"
    size, target = recorded.run["params"]["size"], recorded.run["params"]["target"]
    words = format_bytes(size)
    return {
        "Best strategy": TITLES[best],
        f"It pins {words} in": total[best],
        "Its rate": size / total[best],
        f"Your {format_bytes(target)} take": target * total[best] / size,
        "Longest neighbour wait": wait[best],
        "Times faster than one cudaHostAlloc": total[usual] / total[best],
        f"One cudaHostAlloc of {words}": total[usual],
        "Longest neighbour wait, one cudaHostAlloc": wait[usual],
        "Its wait ÷ that of cudaHostAlloc": wait[best] / wait[usual],
        "Longest neighbour wait, idle": wait["idle"],
    }
