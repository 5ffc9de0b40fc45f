"""SYNTHETIC timelines: snapshots of a host that never was, kept as `pinscope record` keeps them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

from pinscope.live.series import Moment, NewRow, TimelineRows
from pinscope.records.run import Run, parse_run
from pinscope.records.snapshot import DeviceFigures, Holder, Snapshot
from tests.data import synthetic
from tests.data.synthetic_snapshot import GIB, MIB, TAKEN_AT, device, holder, host, snapshot

Amount = Callable[[int], int | None]
"""Number of a sample → bytes."""


def run(interval_seconds: float = 1.0, **changes: Any) -> Run:
    """A timeline's run, on a host with two GPUs."""
    params = {"interval_seconds": interval_seconds, "probe": False}
    fields = dict(synthetic.run("timeline", "cuda", devices=2, params=params, **changes))
    return parse_run(fields | {"kind": "timeline", "lab": "live"})


def rows_of(snapshots: Iterable[Snapshot], interval_seconds: float = 1.0) -> list[NewRow]:
    """Rows of these snapshots, taken one after the other at even steps."""
    made = TimelineRows()
    found: list[NewRow] = []
    for number, one in enumerate(snapshots):
        moment = Moment(number, number * interval_seconds)
        taken = one.model_copy(update={"taken_at": TAKEN_AT + timedelta(seconds=moment.elapsed_seconds)})
        found += made.of(taken, moment, watch_cpu_seconds=0.01 * (number + 1))
    return found


def watched(
    samples: int,
    holders: Callable[[int], Sequence[Holder]] = lambda number: (holder(),),
    devices: Callable[[int], Sequence[DeviceFigures]] = lambda number: (),
    interval_seconds: float = 1.0,
    **totals: Amount,
) -> list[NewRow]:
    """Rows of a host, sample by sample.

    Args:
        samples: how many.
        holders: who holds memory in each of them.
        devices: its GPUs.
        interval_seconds: between two of them.
        totals: fields of the host's totals, such as ``pinned_bytes``.
    """
    return rows_of(
        (
            snapshot(
                host=host(**{name: amount(number) for name, amount in totals.items()}),
                holders=tuple(holders(number)),
                devices=tuple(devices(number)),
            )
            for number in range(samples)
        ),
        interval_seconds,
    )


def growing(samples: int = 60, step_bytes: int = 8 * MIB) -> list[NewRow]:
    """A host where one of two holders takes more and more, all of it seen by two GPUs."""
    return watched(
        samples,
        holders=lambda number: (
            holder(1, name="leaky", host_alloc_bytes=GIB + number * step_bytes),
            holder(2, name="steady", host_alloc_bytes=8 * GIB),
        ),
        devices=lambda number: tuple(
            device(index, unattributed_bytes=20 * MIB + number * step_bytes // 512, page_table_bytes=18 * MIB)
            for index in range(2)
        ),
        pinned_bytes=lambda number: 9 * GIB + number * step_bytes + GIB,
        explained_bytes=lambda number: 9 * GIB + number * step_bytes,
        other_pinned_bytes=lambda number: GIB,
        available_bytes=lambda number: 400 * GIB - number * step_bytes,
    )
