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
    medians = whole.groupby(["way", "pattern"])["wall_seconds"].median()
    found: dict[str, object] = {
        f"Time of {WAYS[way]} ÷ explicit copy, one {PATTERNS[pattern]}": medians[way, pattern]
        / medians["copy", pattern]
        for way, pattern in (("mapped", "random_read"), ("managed", "stream_read"), ("mapped", "stream_read"))
    }
    for pattern, title in PATTERNS.items():
        alike = whole[whole["pattern"] == pattern]
        seconds = alike.groupby("way")["wall_seconds"].median()
        as_good = seconds[(seconds / seconds.min()).round(2) <= 1.1].sort_values()
        found[f"Fastest for one {title}"] = " or ".join(WAYS[way] for way in as_good.index)
        found[f"Useful rate of the fastest, one {title}"] = alike["touched_bytes"].iloc[0] / seconds.min()
    return found
