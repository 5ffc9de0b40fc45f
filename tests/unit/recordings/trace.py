"""Headline of ``trace`` again: what pinning would save, and what was copied, from the rows of its lines."""

from __future__ import annotations

from tests.unit.recordings.raw import Recorded


def headline(recorded: Recorded) -> dict[str, object]:
    rows, params = recorded.rows, recorded.run["params"]
    program, sites = rows[rows["kind"] == "program"].iloc[0], rows[rows["kind"] == "site"]
    large = sites[sites["direction"].isin(["h2d", "d2h"]) & (sites["large_count"] > 0)]
    pageable = large[(large["source"] == "pageable") | (large["target"] == "pageable")]
    pinned = large[(large["source"] == "pinned") | (large["target"] == "pinned")]
    rate = pageable["direction"].map({"h2d": params["pinned_h2d"], "d2h": params["pinned_d2h"]})
    saved = (pageable["idle_seconds"] - pageable["bytes"] / rate).clip(lower=0)
    devices = rows[rows["kind"] == "device"]
    return {
        "GPU compute busy, first to last copy or kernel": devices["busy_seconds"].mean() / program["active_seconds"],
        "Saved if pinned (about)": saved.sum(),
        "Copied from or to pageable memory by lines with large copies": pageable["bytes"].sum(),
        "Copied from or to pinned memory by lines with large copies": pinned["bytes"].sum(),
        "Saved if also issued early (of the copies, at most)": pageable["idle_seconds"].sum(),
        "GPU compute idle for large pageable copies": pageable["idle_seconds"].sum(),
        "CPU held by large pageable copies": pageable["call_seconds"].sum(),
        "From the first copy or kernel to the last": program["active_seconds"],
        "The program ran": program["seconds"],
        "Copies recorded": program["copies"],
    }
