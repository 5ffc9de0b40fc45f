"""A training loop fed by a DataLoader: what each combination of its settings reaches, and what it waits for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pinscope.analysis.statistics import Summary, summarize

COUNTER_SLACK_BYTES = 2**20
"""The kernel batches its count of pinned pages per processor: so far off may the growth of it be."""
_LABELS = ("pin_memory", "non_blocking", "workers", "batch_bytes")


@dataclass(frozen=True)
class Combination:
    """All counted steps with the same settings.

    Attributes:
        pin_memory, non_blocking, workers: the settings.
        batch_bytes: images of one batch.
        step_seconds, wait_seconds, issue_seconds, copy_seconds, compute_seconds, stall_seconds: medians with spread.
        pinned_bytes: what was pinned for it; ``None`` where the host does not tell.
        wrong_items: items that did not arrive as they should.
    """

    pin_memory: bool
    non_blocking: bool
    workers: int
    batch_bytes: int
    step_seconds: Summary
    wait_seconds: Summary
    issue_seconds: Summary
    copy_seconds: Summary
    compute_seconds: Summary
    stall_seconds: Summary
    pinned_bytes: int | None
    wrong_items: int

    @property
    def steps_per_second(self) -> float:
        """From the median step."""
        return 1 / self.step_seconds.median

    @property
    def stall_share(self) -> float:
        """Of a step, the GPU computed nothing."""
        return min(self.stall_seconds.median / self.step_seconds.median, 1.0)

    @property
    def wait_share(self) -> float:
        """Of a step, the program waited for the loader."""
        return min(self.wait_seconds.median / self.step_seconds.median, 1.0)

    @property
    def copy_bytes_per_second(self) -> float:
        """Of the copy to the GPU."""
        return self.batch_bytes / self.copy_seconds.median

    @property
    def title(self) -> str:
        """The settings in a few words."""
        pin = "pinned" if self.pin_memory else "pageable"
        return f"{pin}, {'non_blocking' if self.non_blocking else 'blocking'}"


def combinations(rows: Iterable[Mapping[str, Any]]) -> list[Combination]:
    """Counted steps, grouped by the settings; in the order measured."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        if not row["warmup"]:
            groups.setdefault(tuple(row[name] for name in _LABELS), []).append(row)
    return [_combination(group) for group in groups.values()]


def _combination(rows: Sequence[Mapping[str, Any]]) -> Combination:
    def summary(name: str) -> Summary:
        return summarize([row[name] for row in rows])

    return Combination(
        **{name: rows[0][name] for name in _LABELS},
        step_seconds=summary("step_seconds"),
        wait_seconds=summary("wait_seconds"),
        issue_seconds=summary("issue_seconds"),
        copy_seconds=summary("copy_seconds"),
        compute_seconds=summary("compute_seconds"),
        stall_seconds=summary("stall_seconds"),
        pinned_bytes=_beyond_slack(rows[-1]["pinned_bytes"]),
        wrong_items=sum(row["wrong_items"] for row in rows),
    )


def _beyond_slack(grown: int | None) -> int | None:
    """The growth of the kernel's count; within what the count is off by, nothing was pinned."""
    return 0 if grown is not None and abs(grown) <= COUNTER_SLACK_BYTES else grown


def rounded_up(nbytes: int) -> int:
    """What PyTorch's pinned allocator takes for a request, unless it is configured otherwise: a power of two."""
    return 1 << (nbytes - 1).bit_length()
