"""Headline of ``overlap`` again: what the full recipe hides, and what is corrupted without events."""

from __future__ import annotations

from tests.unit.recordings.raw import Recorded


def headline(recorded: Recorded) -> dict[str, object]:
    rows = recorded.counted
    rows = rows[rows["kind"] == "pass"]
    found: dict[str, object] = {}
    recipe = rows["separate_stream"].eq(True) & rows["depth"].eq(2) & rows["events"].eq(True)
    full = recipe & (rows["memory"] == "pinned") & (rows["balance"] == "balanced")
    for way, passes in rows[full].groupby("direction"):
        copy, compute = passes["pinned_copy_seconds"].iloc[0], passes["compute_alone_seconds"].iloc[0]
        hidden = copy + compute - passes["device_seconds"].median()
        found[f"Overlap, full recipe, {way} balanced"] = hidden / min(copy, compute)
        found[f"Compute stall, full recipe, {way} balanced"] = passes["stall_seconds"].median()
    loose = rows[rows["separate_stream"].eq(True) & rows["events"].eq(False) & (rows["memory"] == "pinned")]
    for way, passes in loose[loose["balance"] == "balanced"].groupby("direction"):
        share = passes["corrupted_chunks"].sum() / passes["chunks"].sum()
        found[f"Chunks corrupted without events, {way} balanced"] = share
    return found
