"""Headline of ``staging`` again: pinning to copy, the fastest way, and processor time, at the size that is told."""

from __future__ import annotations

import math

import pandas as pd

from tests.unit.recordings.raw import Recorded

TITLES = {
    "plain": "plain copy", "pin_then_copy": "pin, then copy", "torch_to": "PyTorch to()",
    "torch_pin_then_to_first": "pin_memory().to(), newly pinned",
    "torch_pin_then_to": "pin_memory().to(), pool reused",
    "plain_async": "plain copy, asynchronous call", "register": "register, copy, unregister",
    "reused_buffer": "one pinned buffer, kept", "two_buffers": "two pinned buffers in turn",
    "cupy_asarray": "cupy.asarray, pool reused",
}  # fmt: skip
CHOICES = (
    "plain", "plain_async", "pin_then_copy", "register", "reused_buffer", "two_buffers", "cupy_asarray", "torch_to",
    "torch_pin_then_to",
)  # fmt: skip


def headline(recorded: Recorded) -> dict[str, object]:
    rows = recorded.counted
    size = min(rows["bytes"].unique(), key=lambda one: abs(math.log(one / 2**28)))
    words = f"{size // 2**20} MiB"
    once = rows[(rows["bytes"] == size) & (rows["uses"] == 1)].groupby(["way", "threads"])
    table = pd.DataFrame({"wall": once["wall_seconds"].median(), "cpu": once["cpu_seconds"].mean()}).reset_index()
    ways = pd.DataFrame([_frugal(group).iloc[0] for _, group in table.groupby("way")]).set_index("way", drop=False)
    best = _frugal(ways[ways["way"].isin(CHOICES)])
    wall, cpu = ways["wall"], ways["cpu"]

    def beside(way: str, other: str) -> tuple[str, object]:
        return f"Time of {TITLES[way]} ÷ {TITLES[other]}, {words} once", wall[way] / wall[other]

    return dict(
        [
            beside("pin_then_copy", "plain"),
            (f"Time of the fastest way ÷ plain copy, {words} once", best["wall"].iloc[0] / wall["plain"]),
            (f"Processor time of a pinned copy, {words}", cpu["in_place"]),
            (f"Processor time of a plain copy, {words}", cpu["plain"]),
            beside("torch_pin_then_to_first", "torch_to"),
            beside("torch_pin_then_to", "torch_to"),
            (f"Fastest way, {words} once", " or ".join(_title(row) for _, row in best.iterrows())),
            (f"Its rate, {words} once", size / best["wall"].iloc[0]),
        ]
    )


def _frugal(alike: pd.DataFrame) -> pd.DataFrame:
    """Those as good as the fastest, with the least of the processor first."""
    return alike[(alike["wall"] / alike["wall"].min()).round(2) <= 1.1].sort_values("cpu")


def _title(row: pd.Series) -> str:
    title = TITLES[row["way"]]
    if row["way"] not in ("reused_buffer", "two_buffers"):
        return title
    return f"{title}, {row['threads']} thread{'' if row['threads'] == 1 else 's'}"
