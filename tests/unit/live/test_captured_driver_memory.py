"""A real H200 host with a program for each kind of host memory that leaves a mark of its own.

What each held is known, because each was started with it: tests/gpu/programs/holder.c and PyTorch.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pinscope.records.snapshot import Holder, Snapshot
from tests.data.snapshot_checks import captured

MIB, PAGE = 2**20, 4096
HOST = Path(__file__).parents[3] / "tests" / "data" / "proc" / "h200-driver-memory"
NOTHING, ALLOCATED, WRITE_COMBINED, ORDINARY, CREATED, POOL, ORPHAN, TORCH = 850, 859, 862, 865, 868, 871, 877, 878
ENDED = 874
"""The orphan's parent, which the driver still names."""


@pytest.fixture(scope="module")
def found() -> Snapshot:
    return captured(HOST)


def holder(found: Snapshot, pid: int) -> Holder:
    return next(one for one in found.holders if one.pid == pid)


def test_each_kind_of_memory_is_right_to_the_page(found: Snapshot) -> None:
    for pid, host_alloc, driver_memory in [
        (NOTHING, 0, 0),
        (ALLOCATED, 65 * MIB + 2 * PAGE, 0),
        (WRITE_COMBINED, 0, 66 * MIB + 3 * PAGE),
        (ORDINARY, 0, 0),  # 67 MiB of shared anonymous memory, of which nothing is pinned
        (CREATED, 0, 70 * MIB),  # 68 MiB + 5 pages, in the driver's steps of 2 MiB
        (POOL, 0, 98 * MIB),  # 69 MiB + 6 pages, in the pool's steps of 32 MiB, and 2 MiB of the pool's own
        (ORPHAN, 70 * MIB + 7 * PAGE, 0),
        (TORCH, 36 * MIB, 0),  # 20 MiB + 1 B, rounded up by PyTorch, and two chunks for small requests
    ]:
        one = holder(found, pid)
        assert (one.host_alloc_bytes, one.driver_memory_bytes) == (host_alloc, driver_memory)
        assert one.context_pinned_bytes == 8 * MIB
        assert not {"host_alloc_bytes", "driver_memory_bytes"} & one.estimates.keys()


def test_all_that_is_pinned_on_the_host_is_explained_to_the_page(found: Snapshot) -> None:
    assert found.host.explained_bytes == found.host.pinned_bytes == 235 * MIB + 9 * PAGE
    assert found.host.other_pinned_bytes == 0


def test_an_orphan_shows_with_the_gpu_of_its_context_and_its_page_table(found: Snapshot) -> None:
    one = holder(found, ORPHAN)
    assert (one.parent_pid, one.rss_shmem_bytes) == (1, 0)
    assert [(use.index, use.memory_bytes, use.page_table_bytes) for use in one.gpus] == [(0, None, 2 * MIB)]
    assert "has ended" in one.gpus[0].missing["memory_bytes"]
    (gap,) = found.unreadable
    assert f"pid {ENDED}" in gap.what
    assert not gap.hides_holders
