"""Headline of ``timeline`` again: peaks and ends of the host's figures, and who grew most."""

from __future__ import annotations

import pandas as pd

from pinscope.units import format_seconds
from tests.unit.recordings.raw import Recorded


def at(series: pd.Series, place: object, host: pd.DataFrame) -> str:
    """When a value was seen first."""
    return f"after {format_seconds(float(host.loc[place, 'elapsed_seconds']))}"


def headline(recorded: Recorded) -> dict[str, object]:
    rows = recorded.rows
    host, gpus = rows[rows["kind"] == "host"], rows[rows["kind"] == "device"]
    found: dict[str, object] = {}
    for words, field, largest in (
        ("Most pinned", "pinned_bytes", True),
        ("Least memory available", "available_bytes", False),
        ("Least memory left in the control group", "cgroup_headroom_bytes", False),
    ):
        place = host[field].idxmax() if largest else host[field].idxmin()
        found[f"{words}, {at(host[field], place, host)}"] = host.loc[place, field]
    found["Pinned at the end"] = host["pinned_bytes"].iloc[-1]
    held = rows[rows["kind"] == "holder"].copy()
    parts = ["host_alloc_bytes", "registered_bytes", "locked_bytes"]
    held["all_bytes"] = held[parts].fillna(0).sum(axis=1)
    peak = held.groupby(["pid", "name"])["all_bytes"].max()
    pid, name = peak.idxmax()
    found[f"Grew most: {name} (pid {int(pid)})"] = peak.max()
    place = gpus["unattributed_bytes"].idxmax()
    gpu = int(gpus.loc[place, "device"])
    words = f"Most GPU memory charged to no process, GPU {gpu}, {at(gpus['unattributed_bytes'], place, gpus)}"
    found[words] = gpus.loc[place, "unattributed_bytes"]
    return found
