"""A training loop fed by a DataLoader: what each combination of its settings reaches, and what it waits for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
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
        step_seconds, issue_seconds, copy_seconds: medians with spread.
        mean_step_seconds, mean_wait_seconds, mean_compute_seconds, mean_stall_seconds: of all steps together. Batches
            come in bursts: a loop that waits long for every fourth one shows that in no median.
        pinned_bytes: what was pinned for it; ``None`` where the host does not tell.
        wrong_items: items that did not arrive as they should.
    """

    pin_memory: bool
    non_blocking: bool
    workers: int
    batch_bytes: int
    step_seconds: Summary
    issue_seconds: Summary
    copy_seconds: Summary
    mean_step_seconds: float
    mean_wait_seconds: float
    mean_compute_seconds: float
    mean_stall_seconds: float
    pinned_bytes: int | None
    wrong_items: int

    @property
    def steps_per_second(self) -> float:
        """Steps over the time that all of them took."""
        return 1 / self.mean_step_seconds

    @property
    def stall_share(self) -> float:
        """Of all the time, the GPU computed nothing."""
        return min(self.mean_stall_seconds / self.mean_step_seconds, 1.0)

    @property
    def wait_share(self) -> float:
        """Of all the time, the program waited for the loader."""
        return min(self.mean_wait_seconds / self.mean_step_seconds, 1.0)

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

    def mean(name: str) -> float:
        return fmean(row[name] for row in rows)

    return Combination(
        **{name: rows[0][name] for name in _LABELS},
        step_seconds=summary("step_seconds"),
        issue_seconds=summary("issue_seconds"),
        copy_seconds=summary("copy_seconds"),
        mean_step_seconds=mean("step_seconds"),
        mean_wait_seconds=mean("wait_seconds"),
        mean_compute_seconds=mean("compute_seconds"),
        mean_stall_seconds=mean("stall_seconds"),
        pinned_bytes=_beyond_slack(rows[-1]["pinned_bytes"]),
        wrong_items=sum(row["wrong_items"] for row in rows),
    )


def _beyond_slack(grown: int | None) -> int | None:
    """The growth of the kernel's count; within what the count is off by, nothing was pinned."""
    return 0 if grown is not None and abs(grown) <= COUNTER_SLACK_BYTES else grown


def rounded_up(nbytes: int) -> int:
    """What PyTorch's pinned allocator takes for a request, unless it is configured otherwise: a power of two."""
    return 1 << (nbytes - 1).bit_length()
