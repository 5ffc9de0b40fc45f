"""Headline of ``access`` again: the fastest way for data that is used whole and once."""

from __future__ import annotations

from tests.unit.recordings.raw import Recorded

PATTERNS = {
    "stream_read": "streaming read", "stream_write": "streaming write", "random_read": "random read",
    "scatter_write": "scatter write",
}  # fmt: skip
WAYS = {
    "copy": "explicit copy", "mapped": "zero-copy (mapped)", "managed": "managed, on demand",
    "prefetched": "managed, prefetched",
}  # fmt: skip


def headline(recorded: Recorded) -> dict[str, object]:
    rows = recorded.counted
    whole = rows[(rows["spacing"] == 1) & (rows["uses"] == 1)]
    found: dict[str, object] = {}
    for pattern, title in PATTERNS.items():
        alike = whole[whole["pattern"] == pattern]
        seconds = alike.groupby("way")["wall_seconds"].median()
        as_good = seconds[(seconds / seconds.min()).round(2) <= 1.1].sort_values()
        found[f"Used once: {title}"] = " or ".join(WAYS[way] for way in as_good.index)
        found[f"Its rate: {title}"] = alike["touched_bytes"].iloc[0] / seconds.min()
    return found
