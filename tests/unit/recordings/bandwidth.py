"""Headline of ``bandwidth`` again: rates of pinned copies by the engine of one GPU, beside pageable ones."""

from __future__ import annotations

from pinscope.units import format_bytes
from tests.unit.recordings.raw import Recorded

GEN5_X16_PAYLOAD = 16 * 32e9 / 8 * 128 / 130 * 256 / 280
"""Bytes/second: lanes × transfers ÷ 8 × coding × packets of 256 bytes with 24 of overhead."""


def headline(recorded: Recorded) -> dict[str, object]:
    rows = recorded.counted
    alone = rows[(rows["copier"] == "engine") & (rows["devices"] == 1) & (rows["device"] == recorded.run["device"])]
    seconds = alone.groupby(["memory", "direction", "bytes"])["device_seconds"].median()
    found: dict[str, object] = {}
    for way in ("h2d", "d2h"):
        pinned, pageable = seconds["pinned", way], seconds["pageable", way]
        largest, gain = pinned.index.max(), pageable / pinned
        found[f"Pinned {way}, {format_bytes(int(largest))}"] = largest / pinned[largest]
        found[f"Pinned ÷ pageable, {way}"] = gain[largest]
        slower = gain.index[gain < 1.1]
        found[f"Pinning pays from, {way}"] = int(gain.index[gain.index > max(slower, default=0)].min())
    largest = seconds["pinned", "h2d"].index.max()
    found["Share of the link's limit, h2d"] = largest / seconds["pinned", "h2d"][largest] / GEN5_X16_PAYLOAD
    return found
