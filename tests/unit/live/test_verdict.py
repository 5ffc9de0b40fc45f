"""Who holds pinned memory, in one sentence, on captured and on synthetic hosts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from pinscope.live.reading import gpu_verdict, pinned_change, snapshot_verdict
from pinscope.records.figure import at_most
from pinscope.records.snapshot import GpuProcess
from pinscope.records.timeline import HolderSample
from tests.data.snapshot_checks import captured
from tests.data.synthetic_snapshot import GIB, MIB, device, holder, host, snapshot
from tests.unit.live.test_charts import holding, sample

PROC = Path(__file__).parents[2] / "data" / "proc"


def test_without_a_holder_it_says_so_and_what_the_host_counts() -> None:
    seen = snapshot(holders=(), host=host(total_bytes=64 * GIB, pinned_bytes=16 * GIB))
    assert snapshot_verdict(seen) == (
        "No process is seen to hold pinned memory; 16 GiB is pinned on the whole host, 25.0 % of its memory."
    )


def test_where_the_host_counts_no_pins_only_the_holders_are_named() -> None:
    seen = snapshot(holders=(holder(7, host_alloc_bytes=3 * GIB),), host=host(pinned_bytes=None))
    assert snapshot_verdict(seen) == "python (pid 7) holds 3 GiB of pinned memory."


def test_of_several_the_one_that_holds_most_is_named_with_its_bound() -> None:
    most = holder(8, host_alloc_bytes=3 * GIB, estimates={"host_alloc_bytes": at_most("shared memory is among it")})
    seen = snapshot(holders=(holder(7, host_alloc_bytes=GIB), most), host=host(pinned_bytes=None))
    assert snapshot_verdict(seen) == "2 processes hold pinned memory, python (pid 8) the most: at most 3 GiB."


def test_memory_that_is_only_locked_is_not_held_for_a_gpu() -> None:
    locker = holder(7, host_alloc_bytes=0, registered_bytes=None, locked_bytes=512 * MIB)
    assert snapshot_verdict(snapshot(holders=(locker,), host=host(pinned_bytes=None))) == (
        "No process is seen to hold pinned memory."
    )


@pytest.mark.parametrize("name", sorted(path.name for path in PROC.iterdir()))
def test_every_captured_host_has_a_sentence(name: str) -> None:
    verdict = snapshot_verdict(captured(PROC / name))
    assert verdict.endswith(".")
    assert "None" not in verdict


def test_of_a_gpu_it_names_the_user_that_holds_most() -> None:
    small, other = holder(8, host_alloc_bytes=GIB), holder(9, gpus=())
    seen = snapshot(holders=(holder(7, host_alloc_bytes=3 * GIB), small, other))
    assert gpu_verdict(seen, 0) == "2 processes use it now; python (pid 7) holds the most pinned memory: 3 GiB."


def test_of_a_gpu_whose_users_hold_nothing_it_says_how_many_use_it() -> None:
    idle = holder(7, host_alloc_bytes=0)
    assert gpu_verdict(snapshot(holders=(idle,)), 0) == "A process uses it now; no pinned memory is seen of it."
    hidden = device(processes=(GpuProcess(pid=1, memory_bytes=None), GpuProcess(pid=2, memory_bytes=None)))
    seen = snapshot(holders=(), devices=(hidden,))
    assert gpu_verdict(seen, 0) == "2 processes use it now; no pinned memory is seen of them."


def test_of_a_gpu_that_nobody_uses_or_knows() -> None:
    assert gpu_verdict(snapshot(holders=()), 0) == "No process uses it now."
    assert gpu_verdict(snapshot(), 5) is None


def test_what_changed_lately_is_said_with_its_time_and_small_changes_are_not() -> None:
    def change(*pinned: int | None) -> str:
        return pinned_change([sample(at, one, None) for at, one in enumerate(pinned)])

    assert change(GIB, None, 3 * GIB) == "That is 2 GiB more than 2.00 s ago."
    assert change(3 * GIB, GIB) == "That is 2 GiB less than 1.00 s ago."
    assert change(GIB, GIB + MIB) == change(None, None) == change() == ""


def test_the_process_behind_most_of_a_change_is_named_unless_its_amount_was_not_known_or_others_are_left_out() -> None:
    def change(first: Sequence[HolderSample], last: Sequence[HolderSample], left_out: int = 0) -> str:
        moments = [
            sample(0, GIB, holders=tuple(first), holders_left_out=left_out),
            sample(2, 5 * GIB, holders=tuple(last)),
        ]
        return pinned_change(moments)

    said = "That is 4 GiB more than 2.00 s ago"
    assert change([holding(7, GIB)], [holding(7, 4 * GIB), holding(8, GIB)]) == f"{said}; one (pid 7) took 3 GiB of it."
    assert change([], [holding(8, 4 * GIB)]) == f"{said}; one (pid 8) took 4 GiB of it."
    assert change([holding(7, None)], [holding(7, 4 * GIB)]) == f"{said}."
    assert change([], [holding(7, GIB), holding(8, GIB), holding(9, GIB)]) == f"{said}."
    assert change([], [holding(8, 4 * GIB)], left_out=1) == f"{said}."
    back = pinned_change([sample(0, 5 * GIB, holders=(holding(7, 4 * GIB),)), sample(2, GIB)])
    assert back == "That is 4 GiB less than 2.00 s ago; one (pid 7) gave back 4 GiB of it."
