"""Headline of ``scatter`` again: the best way for the smallest pieces, in every direction and layout, beside a loop."""

from __future__ import annotations

import pandas as pd

from pinscope.units import format_bytes
from tests.unit.recordings.raw import Recorded

SIMPLEST = ["copy_2d", "loop", "batch", "graph", "kernel", "cpu", "managed"]
WAYS = {
    "copy_2d": "one 2D copy", "loop": "a loop of copies", "batch": "one batch call",
    "graph": "a CUDA graph of the copies", "kernel": "one kernel", "cpu": "CPU threads and one copy",
    "managed": "prefetches of managed memory",
}  # fmt: skip
TOWARDS = {"h2d": "to the GPU", "d2h": "from the GPU"}


def headline(recorded: Recorded) -> dict[str, object]:
    moves = recorded.counted[recorded.counted["kind"] == "move"].fillna({"blocks": 0, "threads": 0})
    keys = ["direction", "layout", "bytes", "way", "blocks", "threads", "sms", "pieces"]
    cells = moves.groupby(keys)["wall_seconds"].median().reset_index()
    cells["rate"] = cells["bytes"] * cells["pieces"] / cells["wall_seconds"]
    found: dict[str, object] = {}
    least = cells["bytes"].min()
    for number, (direction, layout) in enumerate([("h2d", "scattered"), ("h2d", "strided"), ("d2h", "scattered"),
                                                  ("d2h", "strided")]):  # fmt: skip
        own = cells[(cells["direction"] == direction) & (cells["layout"] == layout)]
        ways = _ways(own[own["bytes"] == least])
        best = _best(ways)
        found[_name(best)] = best["rate"]
        if number == 0:
            loop = ways.loc["loop"]
            found["Gain over a loop of copies"] = best["rate"] / loop["rate"]
            found[_name(loop)] = loop["rate"]
            found["Size from which a loop is good enough"] = _loop_suffices(own)
            found["Multiprocessors that the kernel needs on an idle GPU"] = int(ways.loc["kernel"]["sms"])
    return found


def _ways(alike: pd.DataFrame) -> pd.DataFrame:
    """Way → the cell of the fewest blocks or threads that reaches 95 % of its best."""
    best = alike.groupby("way")["rate"].transform("max")
    good = alike[alike["rate"] >= 0.95 * best].sort_values(["blocks", "threads"])
    return good.groupby("way").first().assign(way=lambda cells: cells.index)


def _best(ways: pd.DataFrame) -> pd.Series:
    movers = ways.drop("contiguous")
    as_good = (movers["rate"].max() / movers["rate"]).round(2) <= 1.1
    return ways.loc[next(way for way in SIMPLEST if as_good.get(way, False))]


def _loop_suffices(own: pd.DataFrame) -> int | None:
    least = None
    for size in sorted(own["bytes"].unique(), reverse=True):
        ways = _ways(own[own["bytes"] == size])
        if ways.loc["loop"]["rate"] < 0.9 * ways.loc["contiguous"]["rate"]:
            break
        least = int(size)
    return least


def _name(cell: pd.Series) -> str:
    return (
        f"{int(cell['pieces']):,} {cell['layout']} pieces of {format_bytes(int(cell['bytes']))} "
        f"{TOWARDS[cell['direction']]} by {WAYS[cell['way']]}"
    )
