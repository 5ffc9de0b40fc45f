"""What pinned memory of every kind takes on a real GPU: page tables on every GPU, and all of it returned.

Predicted for an H200 (driver 580), and measured so: each kind takes 2 MiB of GPU memory a GiB, whatever stands under
it; a host pool takes none until the GPU has access.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import get_args

import pytest
from cupy.cuda import runtime

from pinscope.experiments.page_tables.reading import Cell, cells_of
from pinscope.experiments.registration.reading import Trial, trials
from pinscope.lab.backing import touch, why_not_backing
from pinscope.lab.cuda import CudaLab
from pinscope.lab.harness import driver_memory
from pinscope.lab.protocol import HostBuffer
from pinscope.records.run import Backing, DriverMemory
from tests.gpu.machine import GIB, IS_H200, MIB, PAGES_OFF, run

Cells = Mapping[tuple[str, str], Cell]


@pytest.fixture(scope="module")
def at_16_gib() -> Cells:
    ways = ("memory=pinned,registered", "backings=4k,thp,shm", "all_devices=false")
    document = run("page_tables", "total=16GiB", "steps=256", *ways)
    assert document["run"]["params"]["total"] == 16 * GIB
    return {(cost.memory, cost.backing): cost for cost in cells_of(document["observations"])}


WAYS = [("pinned", ""), ("registered", "4k"), ("registered", "thp"), ("registered", "shm")]


@pytest.mark.parametrize("way", WAYS)
def test_each_pinned_gib_takes_8_bytes_a_page_of_gpu_memory_and_all_returns(
    at_16_gib: Cells, way: tuple[str, str]
) -> None:
    cost = at_16_gib[way]
    if IS_H200:
        assert cost.per_byte == pytest.approx(2 * MIB / GIB, rel=0.02)
        assert cost.page_bytes == 4096
    assert cost.per_byte is None or cost.straight
    assert cost.host_pinned_bytes == pytest.approx(16 * GIB, abs=4 * PAGES_OFF * 4096)
    assert cost.left_bytes is not None
    assert cost.left_bytes <= 2 * MIB


def test_both_meters_see_gpu_memory_come_and_go() -> None:
    with CudaLab(0) as lab:
        before = lab.memory_state()
        with lab.device_buffer(256 * MIB):
            held = lab.memory_state()
        after = lab.memory_state()
    assert not held.missing
    for name in ("device_used_bytes", "nvml_used_bytes"):
        assert getattr(held, name) - getattr(before, name) == 256 * MIB
        assert getattr(after, name) == getattr(before, name)


@pytest.mark.two_gpus
def test_every_gpu_with_a_context_pays() -> None:
    document = run("page_tables", "total=8GiB", "memory=pinned,registered", "backings=thp")
    found = cells_of(document["observations"])
    assert {cost.device for cost in found} == set(range(runtime.getDeviceCount()))
    for cost in found:
        assert cost.per_byte is not None
        if IS_H200:
            assert cost.per_byte == pytest.approx(2 * MIB / GIB, rel=0.1)
        assert cost.left_bytes is not None
        assert cost.left_bytes <= 2 * MIB
    assert "every-gpu-pays" in {finding["rule"] for finding in document["run"]["findings"]}


REACHED: tuple[DriverMemory, ...] = ("created", "created_pieces", "pool_granted")
POOLS = {2 * MIB: (4 * GIB) // (2 * MIB), GIB: 4}
"""Size of a reserved page → how many the page tables take."""


@pytest.fixture(scope="module", autouse=True)
def _reserved_pages() -> Iterator[None]:
    """Reserved huge pages of both sizes, as many as root gets; given back afterwards."""
    with ExitStack() as stack:
        for size, count in POOLS.items():
            file = Path(f"/sys/kernel/mm/hugepages/hugepages-{size // 1024}kB/nr_hugepages")
            try:
                before = file.read_text()
                file.write_text(str(int(before) + count))
            except OSError:
                continue  # the tests that need them say what is missing
            stack.callback(file.write_text, before)
        yield


@pytest.mark.parametrize("kind", REACHED)
def test_what_the_cpu_wrote_arrives_on_the_gpu_and_comes_back(lab: CudaLab, kind: DriverMemory) -> None:
    with driver_memory(lab, kind) as take, take(64 * MIB) as memory:
        _there_and_back(lab, memory)


def test_without_access_a_copy_is_complete_when_its_call_returns_as_from_pageable_memory(lab: CudaLab) -> None:
    """An H200 showed 8.0 ms for the call of 64 MiB and 0.02 ms after it; with access 28 us for the call of 256 MiB."""
    shares = {}
    for kind in ("pool", "pool_granted"):
        with driver_memory(lab, kind) as take, take(64 * MIB) as memory:
            _there_and_back(lab, memory)
            with lab.device_buffer(memory.nbytes) as device, lab.stream() as stream:
                issued = _seconds(partial(lab.copy_to_device, device, memory, stream))
                shares[kind] = issued / (issued + _seconds(stream.synchronize))
    assert shares["pool"] > 0.8, shares
    assert shares["pool_granted"] < 0.2, shares


@pytest.mark.parametrize("backing", ["4k", "thp", "hugetlb", "hugetlb_1g", "shm", "shm_open"])
@pytest.mark.parametrize("portable", [False, True])
def test_registered_memory_over_every_backing_is_pinned_and_copies_so(
    lab: CudaLab, backing: Backing, portable: bool
) -> None:
    if reason := why_not_backing(backing, 64 * MIB):
        pytest.skip(reason)
    before = lab.memory_state().pinned_bytes
    with lab.ordinary_memory(64 * MIB, backing) as memory:
        touch(memory)
        with lab.register(memory, portable) as registered:
            assert runtime.pointerGetAttributes(registered.address).type == 1  # cudaMemoryTypeHost
            held = lab.memory_state().pinned_bytes
            _there_and_back(lab, registered)
        assert runtime.pointerGetAttributes(memory.address).type == 0  # cudaMemoryTypeUnregistered
    assert before is not None
    assert held is not None
    assert held - before == pytest.approx(64 * MIB, abs=PAGES_OFF * 4096)


def _there_and_back(lab: CudaLab, memory: HostBuffer) -> None:
    with lab.device_buffer(memory.nbytes) as device, lab.stream() as stream:
        first, second = lab.fresh_pattern(), lab.fresh_pattern()
        lab.fill(memory, first)
        lab.copy_to_device(device, memory, stream)
        stream.synchronize()
        assert lab.wrong_words(device, first) == 0
        lab.fill(device, second)
        lab.copy_to_host(memory, device, stream)
        stream.synchronize()
        assert lab.wrong_words(memory, second) == 0


@pytest.mark.parametrize("kind", get_args(DriverMemory))
def test_all_of_it_is_given_back_also_after_an_error(lab: CudaLab, kind: DriverMemory) -> None:
    def once() -> None:
        with pytest.raises(RuntimeError), driver_memory(lab, kind) as take, take(GIB):
            raise RuntimeError

    once()  # what the driver keeps after the first time, it keeps once
    before = lab.memory_state().nvml_used_bytes
    once()
    after = lab.memory_state().nvml_used_bytes
    assert before is not None
    assert after == before


@pytest.fixture(scope="module")
def at_4_gib() -> Cells:
    """Every way of page_tables that this host gives."""
    document = run("page_tables", "total=4GiB", "steps=64", "all_devices=false")
    return {(cost.memory, cost.backing): cost for cost in cells_of(document["observations"])}


def test_every_kind_is_measured(at_4_gib: Cells) -> None:
    wanted = {("pinned", ""), ("write_combined", ""), ("created", ""), ("created_pieces", ""), ("pool", "")}
    wanted |= {("pool_granted", ""), ("portable", "4k"), ("registered", "shm_open")}
    assert wanted <= set(at_4_gib)


def test_each_kind_takes_8_bytes_a_page_of_4_kib_of_gpu_memory(at_4_gib: Cells) -> None:
    if not IS_H200:
        pytest.skip("the figures are those of an H200")
    grown = {way: cost.table_bytes for way, cost in at_4_gib.items() if way[0] != "pool"}
    expected = {way: 2 * MIB * at_4_gib[way].pinned_bytes // GIB for way in grown}
    assert grown == {way: pytest.approx(nbytes, abs=2 * MIB) for way, nbytes in expected.items()}


def test_a_pool_without_access_takes_no_gpu_memory(at_4_gib: Cells) -> None:
    assert at_4_gib["pool", ""].table_bytes < 2 * MIB


def test_only_what_the_kernel_pins_is_in_its_count(at_4_gib: Cells) -> None:
    for (memory, _), cost in at_4_gib.items():
        counted = memory in ("pinned", "registered", "portable")
        expected = cost.pinned_bytes if counted else 0
        assert cost.host_pinned_bytes == pytest.approx(expected, abs=16 * MIB), memory


@pytest.fixture(scope="module")
def shared() -> Mapping[str | None, Trial]:
    more = ("processes=2", "shared=1GiB", "buffer=64MiB", "sharing=memfd,shm_open,shm_open_portable,hugetlb,hugetlb_1g")
    rows = run("registration", "strategies=each_registers", *more, quick=True)["observations"]
    return {trial.sharing: trial for trial in trials(rows)}


def test_each_process_pays_for_each_sort_of_shared_memory(shared: Mapping[str | None, Trial]) -> None:
    assert {"memfd", "shm_open", "shm_open_portable"} <= set(shared)
    for trial in shared.values():
        assert (trial.wrong_count, trial.checked_count > 0) == (0, True)
        if IS_H200:
            assert trial.table_bytes == 2 * 2 * MIB, trial.sharing


@pytest.mark.two_gpus
@pytest.mark.parametrize("portable", [False, True])
def test_memory_that_one_gpu_registered_is_pinned_for_the_other_too(portable: bool) -> None:
    """By CUDA's reference the flag makes no difference where addresses are unified, as on 64-bit Linux."""
    with CudaLab(0) as lab, lab.peer(1) as other, lab.ordinary_memory(GIB, "thp") as memory:
        touch(memory)
        with ExitStack() as stack:
            registered = stack.enter_context(lab.register(memory, portable))
            device, stream = stack.enter_context(other.device_buffer(GIB)), stack.enter_context(other.stream())
            issued = _seconds(lambda: other.copy_to_device(device, registered, stream))
            waited = _seconds(stream.synchronize)
    assert issued < waited / 10


def _seconds(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun
