"""Headline of ``bandwidth`` again: rates of pinned copies by the engine of one GPU, beside pageable ones."""

from __future__ import annotations

from pinscope.units import format_bytes
from tests.unit.recordings.raw import Recorded

GEN5_X16_PAYLOAD = 16 * 32e9 / 8 * 128 / 130 * 256 / 280
"""Bytes/second: lanes × transfers ÷ 8 × coding × packets of 256 bytes with 24 of overhead."""


def headline(recorded: Recorded) -> dict[str, object]:
    rows = recorded.counted
    alone = rows[(rows["copier"] == "engine") & (rows["devices"] == 1) & (rows["device"] == recorded.run["device"])]
    state = alone["backing"].fillna("") + alone["cache"].fillna("")
    alone = alone[
        ((alone["memory"] == "pageable") & (state == "4kcold")) | (alone["memory"] == "pinned") & (state == "")
    ]
    seconds = alone.groupby(["memory", "direction", "bytes"])["one_more_seconds"].median()
    found: dict[str, object] = {}
    for way, words in (("h2d", "to GPU"), ("d2h", "from GPU")):
        pinned, pageable = seconds["pinned", way], seconds["pageable", way]
        largest, gain = pinned.index.max(), pageable / pinned
        found[f"Pinned {words}, {format_bytes(int(largest))}"] = largest / pinned[largest]
        name = f"Pinned ÷ pageable rate (4 KiB pages, cold CPU caches), {words}, {format_bytes(int(largest))}"
        found[name] = gain[largest]
        name = f"Share of the link's limit, pinned {words}, {format_bytes(int(largest))}"
        found[name] = largest / pinned[largest] / GEN5_X16_PAYLOAD
    return found
