"""No run takes more than is safe, and a refused run says the numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinscope.errors import NoDevice, NotEnoughMemory
from pinscope.lab.harness import (
    SAFE_DEVICE_SHARE,
    SAFE_HOST_SHARE,
    SAFE_MEMLOCK_SHARE,
    SAFE_PINNED_SHARE,
    binding_limit,
    check_budget,
    safe_pinned_bytes,
)
from pinscope.lab.hostmodel import STAGING_BYTES
from pinscope.records.base import Budget
from pinscope.records.environment import Device, Limits
from pinscope.records.run import LabKind

MIB, GIB = 2**20, 2**30
SIZES = st.integers(0, 2**42)


def limits(available: int = 64 * GIB, cgroup: int | None = None, memlock: int | None = None) -> Limits:
    return Limits(
        host_total_bytes=128 * GIB, host_available_bytes=available, cgroup_headroom_bytes=cgroup,
        memlock_headroom_bytes=memlock, shm_free_bytes=None,
    )  # fmt: skip


def needs(pinned: int = 0, pageable: int = 0, device: int = 0) -> Budget:
    return Budget(pinned_bytes=pinned, pageable_bytes=pageable, device_bytes=device, seconds=1.0)


def gpu(free: int | None) -> Device:
    return Device(
        index=3, uuid="GPU-0", name="a GPU", pci_bus_id=None, numa_node=None, memory_total_bytes=free,
        memory_free_bytes=free, compute_capability=None, link=None,
    )  # fmt: skip


GPU = gpu(80 * GIB)


@pytest.mark.parametrize(
    ("where", "expected", "name"),
    [
        (limits(), 32 * GIB, "available on the host"),
        (limits(cgroup=8 * GIB), 4 * GIB, "left in the cgroup"),
        (limits(available=4 * GIB, cgroup=8 * GIB), 2 * GIB, "available on the host"),
        (limits(memlock=64 * MIB), 32 * GIB, "available on the host"),
        (limits(available=0), 0, "available on the host"),
    ],
)
def test_what_cuda_may_pin_is_a_share_of_the_tightest_host_limit(where: Limits, expected: int, name: str) -> None:
    assert SAFE_PINNED_SHARE == 0.5
    assert safe_pinned_bytes(where, "cuda") == expected
    assert binding_limit(where, "cuda") == name


def test_what_the_host_model_may_lock_is_also_bound_by_rlimit_memlock_less_its_own_staging() -> None:
    where = limits(memlock=64 * MIB)
    assert safe_pinned_bytes(where, "host") == int(64 * MIB * SAFE_MEMLOCK_SHARE) - STAGING_BYTES
    assert binding_limit(where, "host") == "left under RLIMIT_MEMLOCK"
    assert safe_pinned_bytes(limits(memlock=4096), "host") == 0
    assert safe_pinned_bytes(limits(memlock=None), "host") == 32 * GIB - STAGING_BYTES


@given(SIZES, st.none() | SIZES, st.none() | SIZES, st.sampled_from(["host", "cuda"]))
def test_what_is_called_safe_passes_and_a_byte_more_is_refused(
    available: int, cgroup: int | None, memlock: int | None, lab: LabKind
) -> None:
    where = limits(available, cgroup, memlock)
    safe = safe_pinned_bytes(where, lab)
    device = GPU if lab == "cuda" else None
    if safe:
        check_budget(needs(pinned=safe), where, device, lab)
    with pytest.raises(NotEnoughMemory):
        check_budget(needs(pinned=safe + 1 + 8 * (safe == 0)), where, device, lab)


def test_a_refusal_says_need_safe_share_binding_limit_and_advice_in_one_line() -> None:
    where = limits(available=64 * GIB, cgroup=8 * GIB)
    with pytest.raises(NotEnoughMemory) as refusal:
        check_budget(needs(pinned=6 * GIB), where, GPU, "cuda")
    assert str(refusal.value) == (
        "the run needs 6 GiB of pinned memory, but only 4 GiB is safe here: 50.0 % of 8 GiB left in the cgroup; "
        "give the container (its cgroup) more memory or choose smaller sizes"
    )
    assert refusal.value.exit_code == 3


def test_a_refusal_by_the_locking_limit_says_how_to_raise_it() -> None:
    with pytest.raises(NotEnoughMemory, match=r"of locked memory, .* RLIMIT_MEMLOCK; raise it \(ulimit -l, "):
        check_budget(needs(pinned=64 * MIB), limits(memlock=8 * MIB), None, "host")


def test_pinned_and_pageable_memory_together_must_fit_the_host() -> None:
    where = limits(available=10 * GIB)
    check_budget(needs(pinned=4 * GIB, pageable=4 * GIB), where, GPU, "cuda")
    assert SAFE_HOST_SHARE == 0.8
    with pytest.raises(NotEnoughMemory, match=r"needs 9 GiB of host memory, but only 8 GiB is safe"):
        check_budget(needs(pinned=4 * GIB, pageable=5 * GIB), where, GPU, "cuda")


def test_the_host_model_takes_its_device_memory_from_the_host() -> None:
    where, budget = limits(available=10 * GIB), needs(pinned=GIB, pageable=GIB, device=7 * GIB)
    check_budget(budget, where, GPU, "cuda")
    with pytest.raises(NotEnoughMemory, match="of host memory"):
        check_budget(budget, where, None, "host")


def test_a_gpu_that_shares_the_hosts_memory_counts_as_host_memory() -> None:
    where, budget = limits(available=10 * GIB), needs(pinned=GIB, pageable=GIB, device=7 * GIB)
    with pytest.raises(NotEnoughMemory, match="of host memory"):
        check_budget(budget, where, gpu(None), "cuda")


def test_gpu_memory_must_fit_the_gpus_free_memory() -> None:
    check_budget(needs(device=int(80 * GIB * SAFE_DEVICE_SHARE)), limits(), GPU, "cuda")
    with pytest.raises(
        NotEnoughMemory,
        match=r"needs 65 GiB of GPU memory, but only 64 GiB is safe here: 80.0 % of 80 GiB free on GPU 3",
    ):
        check_budget(needs(device=65 * GIB), limits(), GPU, "cuda")


def test_a_gpu_run_without_a_gpu_is_refused() -> None:
    with pytest.raises(NoDevice, match="no such GPU"):
        check_budget(needs(), limits(), None, "cuda")
