"""Headline of ``registration`` again: GPU memory that pinning took, and the rate of all processes together."""

from __future__ import annotations

from tests.unit.recordings.raw import Recorded

TITLES = {"each_registers": "{} processes register", "one_owner": "one owner for {} processes"}


def headline(recorded: Recorded) -> dict[str, object]:
    rows = recorded.rows
    most = rows["processes"].max()
    found: dict[str, object] = {}
    for strategy, words in TITLES.items():
        title = words.format(most)
        trial = rows[(rows["strategy"] == strategy) & (rows["processes"] == most)]
        used = trial.groupby("step")["nvml_used_bytes"].last()
        found[f"GPU memory for page tables, {title}"] = used["pin"] - used["buffers"]
        copies = trial[(trial["step"] == "copy") & ~trial["warmup"]].groupby("repeat")
        taken = copies["ended_seconds"].max() - copies["begun_seconds"].min()
        found[f"Copy rate of all together, {title}"] = (copies["copied_bytes"].sum() / taken).median()
    return found
