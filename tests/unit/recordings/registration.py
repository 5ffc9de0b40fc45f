"""Headline of ``registration`` again: GPU memory that pinning took, and the rate of all processes together."""

from __future__ import annotations

from tests.unit.recordings.raw import Recorded

TITLES = {"each_registers": "each registers", "one_owner": "one owner copies for all"}


def headline(recorded: Recorded) -> dict[str, object]:
    rows = recorded.rows
    most = rows["processes"].max()
    found: dict[str, object] = {}
    for strategy, title in TITLES.items():
        trial = rows[(rows["strategy"] == strategy) & (rows["processes"] == most)]
        used = trial.groupby("step")["nvml_used_bytes"].last()
        found[f"GPU memory for page tables, {title}, {most} processes"] = used["pin"] - used["buffers"]
        copies = trial[(trial["step"] == "copy") & ~trial["warmup"]].groupby("repeat")
        taken = copies["ended_seconds"].max() - copies["begun_seconds"].min()
        found[f"Rate of all together, {title}, {most} processes"] = (copies["copied_bytes"].sum() / taken).median()
    return found
