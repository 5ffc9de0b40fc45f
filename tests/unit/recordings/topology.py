"""Headline of ``topology`` again: GPUs at once and alone, page tables on each, memory taken by opening another's."""

from __future__ import annotations

import pandas as pd

from tests.unit.recordings.raw import Recorded

WAYS = ("h2d", "d2h", "bidirectional")


def headline(recorded: Recorded) -> dict[str, object]:
    rows = recorded.counted
    near = rows[(rows["kind"] == "copy") & (rows["issued_by"] == "one_process") & (rows["placed"] == "near")]
    gpus = sorted(near["device"].unique())
    found: dict[str, object] = {}
    for way in (way for way in WAYS if way in set(near["direction"])):
        own = near[near["direction"] == way]
        alone = {gpu: _rate(own[own["gpus"] == str(gpu)]) for gpu in gpus}
        found |= {f"GPU {gpu} alone, {way}": rate for gpu, rate in alone.items()}
        if len(gpus) > 1:
            together = _rate(own[own["devices"] == len(gpus)])
            found[f"All {len(gpus)} GPUs at once, {way}"] = together
            found[f"All at once ÷ alone, {way}"] = together / sum(alone.values())
    pins = rows[(rows["kind"] == "pin") & (rows["contexts"] == "every_gpu")]
    for gpu, own in pins.groupby("device"):
        used = own["used_bytes"].tolist()
        found[f"Page tables of {int(own['processes'].iloc[0])} processes, GPU {gpu}"] = used[-1] - used[0]
    opened = rows[rows["kind"] == "open"]
    if len(opened):
        taken = opened["used_bytes"] - opened["used_before_bytes"]
        most = opened.loc[taken.idxmax()]
        name = f"GPU memory taken by opening memory of GPU {most['device']} from GPU {int(most['opener'])}"
        found[name] = taken.max()
    return found


def _rate(rows: pd.DataFrame) -> float:
    """Median over the repeats of what all GPUs and ways moved in their common time."""
    repeats = rows.groupby("repeat").agg({"window_bytes": "sum", "window_seconds": "first"})
    return float((repeats["window_bytes"] / repeats["window_seconds"]).median())
