"""Headline of ``while_serving`` again: longest waits, and what ``chunk="auto"`` costs."""

from __future__ import annotations

import pandas as pd

from pinscope.units import format_bytes
from tests.unit.recordings.raw import Recorded

TITLES = {"auto": 'chunk="auto"', "host_alloc": "one cudaHostAlloc", "register": "one registration"}
LONGEST = [f"{call}_longest_seconds" for call in ("launch", "copy", "query", "synchronize")]


def headline(recorded: Recorded) -> dict[str, object]:
    rows = recorded.counted
    size = int(rows["bytes"].iloc[0])
    rows = rows.assign(wait=rows[LONGEST].max(axis=1), piece=rows["chunk_bytes"].where(rows["way"] == "chunks", 0))
    taken = rows[rows["phase"] != "given_back"].groupby(["way", "piece"])
    cells = pd.DataFrame(
        {"wait": rows.groupby(["way", "piece"])["wait"].max(), "seconds": taken["work_seconds"].median()}
    ).reset_index()
    ways = cells[cells["way"] != "chunks"].set_index("way")
    fastest = cells[~cells["way"].isin(["idle", "touch"])]["seconds"].min()
    auto = rows[rows["way"] == "auto"]
    found: dict[str, object] = {
        'Time of chunk="auto" ÷ the fastest way': ways["seconds"]["auto"] / fastest,
        'Chunk of chunk="auto"': int(auto["chunk_bytes"].min()),
    }
    for way, title in TITLES.items():
        found[f"Longest wait of a call, {title}"] = ways["wait"][way]
    found[f"Time to pin {format_bytes(size)}, {TITLES['auto']}"] = ways["seconds"]["auto"]
    return found
