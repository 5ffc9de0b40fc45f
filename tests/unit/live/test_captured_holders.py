"""Real H200 hosts with one process of every kind of holder, as scripts/capture-proc copied them.

What each process held is known, because each was started with it: tests/gpu/programs/holder.c, PyTorch, mlock.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pinscope.records.snapshot import Snapshot
from tests.data.snapshot_checks import captured, holder_of

MIB, PAGE = 2**20, 4096
HOST = Path(__file__).parents[3] / "tests" / "data" / "proc" / "h200-holders"
NOTHING, ALLOCATED, WRITE_COMBINED, MAPPED, MANAGED, REGISTERED = 725, 731, 734, 737, 740, 743
PARENT, CHILD, CREATOR, WORKER, TORCH, LOCKED = 746, 749, 750, 753, 756, 774
DRIVERS_OWN_BYTES = 8 * MIB
"""The driver itself takes four pieces of 2 MiB in every process with a context."""
DRIVERS_OWN_MANAGED_BYTES = 2 * MIB


@pytest.fixture(scope="module")
def found() -> Snapshot:
    return captured(HOST)


def test_everybody_who_held_something_or_had_a_context_is_there(found: Snapshot) -> None:
    assert {one.pid for one in found.holders} == {
        NOTHING, ALLOCATED, WRITE_COMBINED, MAPPED, MANAGED, REGISTERED, PARENT, CHILD, CREATOR, WORKER, TORCH, LOCKED
    }  # fmt: skip
    assert {one.pid for one in found.holders if not one.cuda} == {LOCKED}
    assert found.unreadable == ()


def test_cuda_host_alloc_is_right_to_the_page(found: Snapshot) -> None:
    for pid, size, count in [
        (ALLOCATED, 68_161_536, 1),
        (MAPPED, 70_266_880, 1),
        (PARENT, 73_424_896, 1),
        (TORCH, 33_554_432, 3),
    ]:
        one = holder_of(found, pid)
        assert (one.allocations[0].size_bytes, one.allocations[0].count) == (size, count)
        drivers = sum(each.size_bytes * each.count for each in one.allocations[1:])
        assert one.host_alloc_bytes == size * count + drivers
        assert drivers == (2 * MIB if pid == TORCH else 0)  # a chunk for small requests
        assert one.context_pinned_bytes == DRIVERS_OWN_BYTES
        assert "host_alloc_bytes" not in one.estimates


def test_what_pytorch_rounds_up_is_marked(found: Snapshot) -> None:
    # It asked for 20 MiB and a byte, three times.
    one = holder_of(found, TORCH)
    assert one.allocations[0].power_of_two
    assert one.rounding_bytes == 3 * 16 * MIB


def test_the_forked_child_adds_nothing_and_is_named(found: Snapshot) -> None:
    parent, child = holder_of(found, PARENT), holder_of(found, CHILD)
    assert child.parent_pid == PARENT
    assert (child.host_alloc_bytes, child.inherited_from, parent.inherited_by) == (0, (PARENT,), (CHILD,))
    assert child.inherited_bytes == parent.host_alloc_bytes
    assert child.gpus == ()


def test_managed_memory_shows_as_address_space(found: Snapshot) -> None:
    managed = {one.pid: one.managed_bytes for one in found.holders if one.cuda}
    assert managed.pop(MANAGED) == 71_319_552 + DRIVERS_OWN_MANAGED_BYTES
    assert managed.pop(CHILD) == 0
    assert set(managed.values()) == {DRIVERS_OWN_MANAGED_BYTES}


def test_locked_memory_is_locked_and_ordinary_shared_memory_is_nobodys(found: Snapshot) -> None:
    one = holder_of(found, LOCKED)
    assert (one.locked_bytes, one.host_alloc_bytes) == (31_457_280, 0)
    assert one.rss_shmem_bytes is not None
    assert one.rss_shmem_bytes >= 50 * MIB
    assert [each.pid for each in found.holders if each.locked_bytes] == [LOCKED]


def test_the_host_total_is_explained_to_the_page_and_the_rest_is_what_was_registered(found: Snapshot) -> None:
    held = [amount for one in found.holders for amount in (one.host_alloc_bytes, one.context_pinned_bytes)]
    assert found.host.explained_bytes == sum(amount for amount in held if amount is not None)
    # Creator and worker registered the same shared memory: its pages are pinned twice and count twice.
    registered = 72_372_224 + 2 * 83_886_080
    assert found.host.other_pinned_bytes is not None
    assert abs(found.host.other_pinned_bytes - registered) <= MIB + registered // 1000


def test_page_tables_are_within_what_no_process_accounts_for(found: Snapshot) -> None:
    (gpu,) = found.devices
    assert gpu.page_table_bytes == sum(use.page_table_bytes or 0 for one in found.holders for use in one.gpus)
    assert gpu.page_table_bytes == 10 * 2 * MIB
    assert gpu.unattributed_bytes is not None
    assert gpu.context_overhead_bytes is not None
    rest = gpu.unattributed_bytes - gpu.page_table_bytes - gpu.context_overhead_bytes
    assert 0 <= rest <= 4 * MIB  # page tables of registered memory among it
    assert {use.index for one in found.holders for use in one.gpus} == {0}


OTHER_HOST = Path(__file__).parents[3] / "tests" / "data" / "proc" / "h200-driver-memory"
BARE, PINNED, COMBINED, ORDINARY, CREATED, POOL, ORPHAN, PYTORCH = 850, 859, 862, 865, 868, 871, 877, 878
ENDED = 874
"""The orphan's parent, which the driver still names."""


@pytest.fixture(scope="module")
def others() -> Snapshot:
    """A host with a program for each kind of host memory that leaves a mark of its own."""
    return captured(OTHER_HOST)


def test_each_kind_of_memory_is_right_to_the_page(others: Snapshot) -> None:
    for pid, host_alloc, driver_memory in [
        (BARE, 0, 0),
        (PINNED, 65 * MIB + 2 * PAGE, 0),
        (COMBINED, 0, 66 * MIB + 3 * PAGE),
        (ORDINARY, 0, 0),  # 67 MiB of shared anonymous memory, of which nothing is pinned
        (CREATED, 0, 70 * MIB),  # 68 MiB + 5 pages, in the driver's steps of 2 MiB
        (POOL, 0, 98 * MIB),  # 69 MiB + 6 pages, in the pool's steps of 32 MiB, and 2 MiB of the pool's own
        (ORPHAN, 70 * MIB + 7 * PAGE, 0),
        (PYTORCH, 36 * MIB, 0),  # 20 MiB + 1 B, rounded up by PyTorch, and two chunks for small requests
    ]:
        one = holder_of(others, pid)
        assert (one.host_alloc_bytes, one.driver_memory_bytes) == (host_alloc, driver_memory)
        assert one.context_pinned_bytes == 8 * MIB
        assert not {"host_alloc_bytes", "driver_memory_bytes"} & one.estimates.keys()


def test_all_that_is_pinned_on_the_host_is_explained_to_the_page(others: Snapshot) -> None:
    assert others.host.explained_bytes == others.host.pinned_bytes == 235 * MIB + 9 * PAGE
    assert others.host.other_pinned_bytes == 0


def test_an_orphan_shows_with_the_gpu_of_its_context_and_its_page_table(others: Snapshot) -> None:
    one = holder_of(others, ORPHAN)
    assert (one.parent_pid, one.rss_shmem_bytes) == (1, 0)
    assert [(use.index, use.memory_bytes, use.page_table_bytes) for use in one.gpus] == [(0, None, 2 * MIB)]
    assert "has ended" in one.gpus[0].missing["memory_bytes"]
    (gap,) = others.unreadable
    assert f"pid {ENDED}" in gap.what
    assert not gap.hides_holders
