"""Headline of ``timeline`` again: peaks and ends of the host's figures, and who grew most."""

from __future__ import annotations

from tests.unit.recordings.raw import Recorded


def headline(recorded: Recorded) -> dict[str, object]:
    rows = recorded.rows
    host, gpus = rows[rows["kind"] == "host"], rows[rows["kind"] == "device"]
    found: dict[str, object] = {}
    for words, field, largest in (
        ("Most pinned", "pinned_bytes", True),
        ("Least memory available", "available_bytes", False),
        ("Least memory left in the control group", "cgroup_headroom_bytes", False),
    ):
        found[words] = host[field].max() if largest else host[field].min()
    found["Pinned at the end"] = host["pinned_bytes"].iloc[-1]
    held = rows[rows["kind"] == "holder"].copy()
    parts = ["host_alloc_bytes", "registered_bytes", "locked_bytes"]
    held["all_bytes"] = held[parts].fillna(0).sum(axis=1)
    peak = held.groupby(["pid", "name"])["all_bytes"].max()
    found["Grew most"] = peak.max()
    pid, name = peak.idxmax()
    found["Process that grew most"] = f"{name} (pid {int(pid)})"
    found["Most GPU memory charged to no process"] = gpus["unattributed_bytes"].max()
    return found
