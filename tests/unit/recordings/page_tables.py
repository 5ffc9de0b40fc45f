"""Headline of ``page_tables`` again: the line through the amounts at which GPU memory rose."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tests.unit.recordings.raw import Recorded

GIB = 2**30


def slope(way: pd.DataFrame) -> float:
    """Bytes of GPU memory for each pinned byte."""
    base = way[way["phase"] == "before"]["nvml_used_bytes"].iloc[0]
    held = way[way["phase"] == "held"].sort_values("bytes")
    grown = (held["nvml_used_bytes"] - base).to_numpy()
    before = np.maximum.accumulate(np.concatenate([[0], grown]))[:-1]
    rose = grown > before
    return float(np.polyfit(held["bytes"].to_numpy()[rose], grown[rose], 1)[0])


def headline(recorded: Recorded) -> dict[str, object]:
    rows = recorded.counted
    rows = rows[rows["device"] == recorded.run["device"]]
    ways = {"allocated pinned": rows[rows["memory"] == "pinned"]}
    for backing in recorded.run["params"]["backings"]:
        ways[f"registered ({backing})"] = rows[(rows["memory"] == "registered") & (rows["backing"] == backing)]
    found: dict[str, object] = {f"GPU memory per pinned GiB, {words}": slope(way) * GIB for words, way in ways.items()}
    first = ways["allocated pinned"].set_index("phase")["nvml_used_bytes"]
    found["Page size this means"] = 8 / slope(ways["allocated pinned"])
    grown = first["held"].iloc[-1] - first["before"]
    found["Returned after freeing"] = min((first["held"].iloc[-1] - first["freed"]) / grown, 1.0)
    return found
