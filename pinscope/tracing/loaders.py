"""What a program saves whose DataLoader pins its batches: a thread beside it then receives and pins them."""

from __future__ import annotations

from collections.abc import Sequence

from pinscope.analysis.read_rows import Row
from pinscope.tracing.mapped_file import NEXT, RECEIVE

MOSTLY_WAITING = 0.1
"""Of the time: a loop that waits longer for its batches, by the median one, goes as fast as the workers make them."""


def saved_by_pinning(calls: Sequence[Row], copying: float, whole: float, busy: float) -> float:
    """Seconds by all copies of a process whose data workers send.

    The step of a loop holds what it receives and copies, and the rest. With pinning the former runs in a thread beside
    the latter: the shorter of both is saved, but no more than the GPU stands idle, and nothing where the loop waits for
    its workers.

    Args:
        calls: of libraries, of the process.
        copying: how long its copies hold the CPU beyond what they would from pinned memory.
        whole: from the first of them to the end.
        busy: how long the GPU computes.
    """
    if sum(row["wait_seconds"] or 0.0 for row in calls if row["call"] == NEXT) > MOSTLY_WAITING * whole:
        return 0.0
    moved = copying + float(sum(row["call_seconds"] for row in calls if row["call"] == RECEIVE))
    return max(min(moved, whole - moved, whole - busy), 0.0)
