"""Headline of ``pinning_strategy`` again: the fast and gentle strategies in one piece and in chunks."""

from __future__ import annotations

import pandas as pd

from pinscope.units import format_bytes
from tests.unit.recordings.raw import Recorded

WHOLE = {
    "host_alloc": "one cudaHostAlloc",
    "register_untouched": "4 KiB pages, untouched, register",
    "touch_register": "4 KiB pages, threads touch, register",
    "thp_register": "huge pages, threads touch, register",
}
IN_CHUNKS = {
    "touch_register_chunks": "4 KiB pages, threads touch, register chunks",
    "thp_register_chunks": "huge pages, threads touch, register chunks",
    "thp_register_threads": "huge pages, threads touch, threads register chunks",
    "thp_pipeline": "huge pages, register each chunk once touched",
}
LONGEST = "Longest driver call of another process"
CALLS = ("info", "nvml", "kernel", "allocation")
NEAR = 1.5
GENTLE = 2.0
"""Times that still count as as good; and from which on cudaHostAlloc is no longer recommended."""


def waits(rows: pd.DataFrame) -> pd.DataFrame:
    """Strategy → the longest call of any neighbour while memory was pinned, and while it was freed."""
    columns = {
        phase: [f"{begin}neighbour_{call}_seconds" for call in CALLS]
        for phase, begin in (("pinning", ""), ("freeing", "release_"))
    }
    by_strategy = rows.groupby("strategy")
    return pd.DataFrame({phase: by_strategy[names].max().max(axis=1) for phase, names in columns.items()})


def usual_waits(rows: pd.DataFrame) -> pd.Series:
    """Strategy → of each repeat the longest call of any neighbour, the median of them."""
    names = [name for name in rows if "neighbour_" in name and "control" not in name]
    return rows[names].max(axis=1).groupby(rows["strategy"]).median()


def best(names: list[str], total: pd.Series, wait: pd.Series) -> str:
    """The fastest of the fast ones that are gentle."""
    fast = [name for name in names if total[name] <= NEAR * total[names].min()]
    gentle = [name for name in fast if wait[name] <= GENTLE * wait[fast].min()]
    return min(gentle, key=lambda name: total[name])


def headline(recorded: Recorded) -> dict[str, object]:
    rows = recorded.counted
    total, phases = rows.groupby("strategy")["total_seconds"].median(), waits(rows)
    wait, phase = phases.max(axis=1), phases.fillna(0).idxmax(axis=1)
    usual = usual_waits(rows)
    array = best([name for name in WHOLE if name in total], total, usual)
    chunks = best([name for name in IN_CHUNKS if name in total], total, usual)
    array = array if total["host_alloc"] >= NEAR * total[array] else "host_alloc"
    size = recorded.run["params"]["size"]
    found = {
        f"Time to pin {format_bytes(size)}, the recommended way": total[array],
        "Recommended way, times faster than one cudaHostAlloc": total["host_alloc"] / total[array],
        "Recommended in one piece": WHOLE[array],
        f"{LONGEST} while {phase[array]} in one piece": wait[array],
    }
    if NEAR * usual[chunks] <= usual[array]:
        found |= {
            "Recommended in chunks": IN_CHUNKS[chunks],
            f"{LONGEST} while {phase[chunks]} in chunks": wait[chunks],
        }
    return found
