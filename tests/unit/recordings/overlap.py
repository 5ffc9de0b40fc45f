"""Headline of ``overlap`` again: what is hidden, what each missing part costs, what is wrong without events."""

from __future__ import annotations

from tests.unit.recordings.raw import Recorded

WORDS = {"h2d": "to GPU", "d2h": "from GPU"}


def headline(recorded: Recorded) -> dict[str, object]:
    rows = recorded.counted
    rows = rows[rows["kind"] == "pass"]
    found: dict[str, object] = {}
    recipe = rows["separate_stream"].eq(True) & rows["depth"].eq(2) & rows["events"].eq(True)
    full = recipe & (rows["memory"] == "pinned") & (rows["balance"] == "balanced")
    for way, passes in rows[full].groupby("direction"):
        copy, compute = passes["pinned_copy_seconds"].median(), passes["compute_alone_seconds"].iloc[0]
        hidden = copy + compute - passes["device_seconds"].median()
        found[f"Overlap of copies and kernels, {WORDS[way]}"] = hidden / min(copy, compute)
        whole = passes["device_seconds"].median()
        mine = rows[(rows["direction"] == way) & (rows["balance"] == "balanced") & rows["events"].eq(True)]
        pageable = (mine["memory"] == "pageable") & mine["separate_stream"].eq(True) & (mine["depth"] == 2)
        found[f"Time with pageable memory against the full recipe, {WORDS[way]}"] = (
            mine[pageable]["device_seconds"].median() / whole
        )
    loose = rows[rows["separate_stream"].eq(True) & rows["events"].eq(False) & (rows["memory"] == "pinned")]
    for way, passes in loose[loose["balance"] == "balanced"].groupby("direction"):
        share = passes["corrupted_chunks"].sum() / passes["chunks"].sum()
        found[f"Wrong chunks without events, {WORDS[way]}"] = share
    return found
