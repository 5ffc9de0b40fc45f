"""Headline of ``allocation`` again: what buffers cost, and after how many copies a pinned one has paid."""

from __future__ import annotations

import math

from pinscope.units import format_bytes
from tests.unit.recordings.raw import Recorded

TITLES = {
    "pinned": "cudaHostAlloc",
    "fresh_4k": "Pageable (fresh, touched, 4 KiB pages)",
    "registered_4k": "touch + register, 4 KiB pages",
}
POOLS = {"pool": "Reused, from a pool", "cupy_pool": "Reused, from CuPy's pool"}


def headline(recorded: Recorded) -> dict[str, object]:
    rows, size = recorded.counted, max(recorded.run["params"]["sizes"])
    words = format_bytes(size)
    buffers = rows[(rows["kind"] == "buffer") & (rows["bytes"] == size)].copy()
    buffers["both_seconds"] = buffers["get_seconds"] + buffers["give_back_seconds"]
    cost = buffers.groupby("way").median(numeric_only=True)
    copies = rows[(rows["kind"] == "copy") & (rows["bytes"] == size)]
    copy = copies.groupby(["memory", "direction"])["wall_seconds"].median()
    found: dict[str, object] = {}
    for way in ("pinned", "fresh_4k"):
        if way in cost.index:
            found[f"{TITLES[way]}, get and free, {words}"] = cost.loc[way, "both_seconds"]
    extra = {}
    if "fresh_4k" in cost.index:  # version 0.1.0 measured none, and did not time unregistering
        extra["pinned"] = cost.loc["pinned", "both_seconds"] - cost.loc["fresh_4k", "both_seconds"]
        extra["registered_4k"] = (
            cost.loc["registered_4k", "register_seconds"] + cost.loc["registered_4k", "unregister_seconds"]
        )
    for way, seconds in extra.items():
        for direction in ("h2d", "d2h"):
            gain = copy["pageable", direction] - copy["pinned", direction]
            buffer = "a pinned buffer" if way == "pinned" else TITLES[way]
            found[f"Copies that repay {buffer}, {direction}, {words}"] = max(math.ceil(seconds / gain), 0)
    for way, title in POOLS.items():
        found[f"{title}, get and free, {words}"] = cost.loc[way, "both_seconds"]
    return found
