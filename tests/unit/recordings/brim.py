"""Headline of ``brim`` again: where others in the group suffer and are killed, and what is felt outside."""

from __future__ import annotations

import pandas as pd

from tests.unit.recordings.raw import Recorded


def headline(recorded: Recorded) -> dict[str, object]:
    rows = recorded.rows[~recorded.rows["swap"].astype(bool)]
    limit = rows["limit_bytes"].iloc[0]
    rounds = rows[(rows["kind"] == "round") & ~rows["warmup"].astype(bool)].copy()
    rounds["seconds"] = rounds["write_seconds"] + rounds["read_seconds"] * rounds["file_bytes"] / rounds["read_bytes"]
    inside, outside = rounds[rounds["who"] == "inside"], rounds[rounds["who"] == "outside"]
    steps = inside[inside["phase"] == "held"].groupby("bytes")
    medians, before = steps["seconds"].median(), inside[inside["phase"] == "before"]["seconds"].median()
    accounts = rows[(rows["kind"] == "group") & (rows["phase"] == "held")].set_index("bytes")
    suffers = (
        _lasting(medians >= 2 * before),
        _lasting((steps["file_cached_bytes"].min() / steps["file_bytes"].max()) <= 0.95),
        _lasting(accounts["stalled_share"].reindex(medians.index).fillna(0) >= 0.1),
        _lasting(accounts["swap_bytes"].reindex(medians.index).fillna(0) >= 0.01 * limit),
    )
    killed = accounts.index[accounts["ended"] == "killed"][0]
    cliff = min(killed, *(amount for amount in suffers if amount is not None))
    below = max(amount for amount in accounts.index if amount < cliff)
    start = rows[(rows["kind"] == "group") & (rows["phase"] == "before")]["used_bytes"].iloc[-1]
    expected = limit - start
    # Afterwards nothing is pinned any more, and nothing is left to disturb.
    control = outside[(outside["bytes"] < cliff) & (outside["phase"] != "after")]["seconds"].median()
    return {
        "Cliff, share of the group's limit": cliff / limit,
        "Step before it, share of the limit": below / limit,
        "Slowest round of work ÷ before pinning": medians.max() / before,
        "Killed at, share of the group's limit": killed / limit,
        "Round outside, from the cliff on ÷ below it": outside[outside["bytes"] >= cliff]["seconds"].median() / control,
        "Group's limit": limit,
        "Cliff off from the group's account, share of its limit": max(below - expected, expected - cliff, 0) / limit,
        "Group and processes gone at the end": bool(rows["gone"].dropna().iloc[-1]),
    }


def _lasting(holds: pd.Series[bool]) -> float | None:
    """The first amount from which on it holds."""
    lasting = holds[::-1].cummin()[::-1]
    return lasting.index[lasting][0] if lasting.any() else None
