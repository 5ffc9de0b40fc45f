"""Headline of ``page_tables`` again: the slopes that readings in steps of 2 MiB leave to the line beneath."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tests.unit.recordings.raw import Recorded

GIB = 2**30
STEP = 2 * 2**20
PAGES = (4 * 2**10, 64 * 2**10, 2 * 2**20)
NAMES = {
    "pinned": "allocated pinned", "write_combined": "allocated write-combined", "created": "cuMemCreate",
    "created_pieces": "cuMemCreate in small handles", "pool": "host pool without access", "pool_granted": "host pool",
}  # fmt: skip
"""Ways of the driver's own memory, as the headline calls them."""


def slopes(way: pd.DataFrame) -> tuple[float, float]:
    """Least and greatest bytes of GPU memory for each pinned byte."""
    base = way[way["phase"] == "before"]["nvml_used_bytes"].iloc[0]
    held = way[way["phase"] == "held"].sort_values("bytes")
    x, y = np.r_[0, held["bytes"]].astype(float), np.r_[0, held["nvml_used_bytes"] - base].astype(float)
    later = x[None, :] > x[:, None]
    width, rise = (x[None, :] - x[:, None])[later], (y[None, :] - y[:, None])[later]
    for steps in range(1, 10_000):
        low, high = ((rise - steps * STEP) / width).max(), ((rise + steps * STEP) / width).min()
        if low <= high * (1 + 1e-9):
            return min(low, high), max(low, high)
    raise AssertionError("no line fits")


def page(low: float, high: float) -> float:
    """A page size of the GPU that fits, its upper levels taking up to a 256th more; else what the middle implies."""
    fitting = [size for size in PAGES if low * (1 - 1e-9) <= 8 / size * (1 + 1 / 256) and 8 / size <= high * (1 + 1e-9)]
    return fitting[0] if fitting else 16 / (low + high)


def per_byte(low: float, high: float) -> float:
    """What that page size takes, as far as the readings leave it possible."""
    return min(max(8 / page(low, high), low), high)


def words(memory: str, backing: object) -> str:
    """A way to pin memory, as the headline calls it."""
    return {"registered": f"registered ({backing})", "portable": f"registered ({backing}, portable)"}.get(
        memory, NAMES.get(memory, memory)
    )


def per_gib(way: pd.DataFrame) -> float | None:
    """What a GiB takes; ``None`` where the growth was less than two steps."""
    used = way.set_index("phase")["nvml_used_bytes"]
    return None if used["held"].max() - used["before"] < 2 * STEP else per_byte(*slopes(way)) * GIB


def headline(recorded: Recorded) -> dict[str, object]:
    rows = recorded.counted
    rows = rows[rows["device"] == recorded.run["device"]]
    ways = {words(*way): group for way, group in rows.groupby(["memory", "backing"], dropna=False)}
    named = [words(*way) for way in rows[["memory", "backing"]].drop_duplicates().itertuples(index=False)][:4]
    found: dict[str, object] = {f"GPU memory per pinned GiB, {name}": per_gib(ways[name]) for name in named}
    first = ways["allocated pinned"].set_index("phase")["nvml_used_bytes"]
    found["Page size of the mapping"] = page(*slopes(ways["allocated pinned"]))
    grown = first["held"].iloc[-1] - first["before"]
    found["GPU memory given back after freeing"] = min((first["held"].iloc[-1] - first["freed"]) / grown, 1.0)
    return found
