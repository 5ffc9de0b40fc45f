"""The cuda lab against CUDA itself."""

from __future__ import annotations

import time
from contextlib import ExitStack

import pytest
from cupy.cuda import runtime

from pinscope.errors import MeasurementFailed, NoDevice, NotEnoughMemory
from pinscope.lab.cuda import CudaLab
from pinscope.lab.protocol import Copier, Touch
from pinscope.probes.proc import HERE
from pinscope.records.run import HostMemory

MIB = 2**20
KINDS: tuple[HostMemory, ...] = ("pageable", "pinned", "write_combined", "mapped", "registered")
UNREGISTERED, HOST = 0, 1  # cudaMemoryTypeUnregistered, cudaMemoryTypeHost
PAGES_OFF = 256
"""The kernel batches its pin counters per processor; so far off may they be."""


def pinned_pages() -> int:
    """Pages that the kernel counts as pinned for device access now (Linux 5.7 and later)."""
    counts = dict(line.split() for line in (HERE.read("/proc/vmstat").value or "").splitlines())
    return int(counts["nr_foll_pin_acquired"]) - int(counts["nr_foll_pin_released"])


@pytest.mark.parametrize("memory", KINDS)
def test_cuda_sees_each_kind_of_memory_as_what_it_is_called(lab: CudaLab, memory: HostMemory) -> None:
    with lab.host_buffer(MIB, memory) as buffer:
        kind = runtime.pointerGetAttributes(buffer.address).type
    assert kind == (UNREGISTERED if memory == "pageable" else HOST)


@pytest.mark.parametrize("copier", ["engine", "kernel"])
@pytest.mark.parametrize("memory", KINDS)
def test_content_survives_the_way_there_and_back(lab: CudaLab, memory: HostMemory, copier: Copier) -> None:
    if lab.why_not(memory, copier):
        assert (memory, copier) == ("pageable", "kernel")
        return
    nbytes = 3 * MIB + 8
    with ExitStack() as stack:
        there = stack.enter_context(lab.host_buffer(nbytes, memory))
        back = stack.enter_context(lab.host_buffer(nbytes, memory))
        device = stack.enter_context(lab.device_buffer(nbytes))
        stream = stack.enter_context(lab.stream())
        pattern = lab.fresh_pattern()
        lab.fill(there, pattern)
        lab.copy_to_device(device, there, stream, copier)
        lab.copy_to_host(back, device, stream, copier)
        stream.synchronize()
        assert lab.wrong_words(device, pattern) == 0
        assert lab.wrong_words(back, pattern) == 0


def test_every_wrong_word_is_counted_on_both_sides(lab: CudaLab) -> None:
    with lab.host_buffer(8 * MIB, "pinned") as host, lab.device_buffer(8 * MIB) as device:
        right, wrong = lab.fresh_pattern(), lab.fresh_pattern()
        for buffer in (host, device):
            lab.fill(buffer, right)
            lab.fill(buffer.part(8 * 1000, 8 * 5), wrong)
            assert lab.wrong_words(buffer, right) == 5
            assert lab.wrong_words(buffer, wrong) > MIB - 100


def test_pinned_copies_return_before_they_are_done_and_pageable_ones_hold_the_caller(lab: CudaLab) -> None:
    held = {}
    for memory in ("pinned", "pageable"):
        with lab.host_buffer(256 * MIB, memory) as host, lab.device_buffer(256 * MIB) as device, lab.stream() as stream:
            lab.copy_to_host(host, device, stream)
            stream.synchronize()
            begun = time.perf_counter()
            lab.copy_to_host(host, device, stream)
            issued = time.perf_counter() - begun
            stream.synchronize()
            held[memory] = issued / (time.perf_counter() - begun)
    assert held["pinned"] < 0.1
    assert held["pageable"] > 0.9


@pytest.mark.parametrize("seconds", [1e-4, 1e-3, 1e-2])
def test_a_calibrated_load_lasts_what_was_asked_for(lab: CudaLab, seconds: float) -> None:
    load = lab.calibrate(seconds)
    with lab.stream() as stream, lab.event() as start, lab.event() as end:
        times = []
        for _ in range(9):
            start.record(stream)
            lab.compute(stream, load)
            end.record(stream)
            stream.synchronize()
            times.append(lab.elapsed(start, end))
    assert sorted(times)[4] == pytest.approx(seconds, rel=0.05)


def test_a_consumer_sees_stale_data_unless_it_waits_for_the_copy(lab: CudaLab) -> None:
    nbytes = 64 * MIB
    load = lab.calibrate(1e-4)
    with ExitStack() as stack:
        host = stack.enter_context(lab.host_buffer(nbytes, "pinned"))
        device = stack.enter_context(lab.device_buffer(nbytes))
        copying, computing = (stack.enter_context(lab.stream()) for _ in range(2))
        copied = stack.enter_context(lab.event())
        counters = stack.enter_context(lab.counters(2))
        for slot, waits in enumerate((False, True)):
            pattern = lab.fresh_pattern()
            lab.fill(host, pattern)
            lab.copy_to_device(device, host, copying)
            copied.record(copying)
            if waits:
                lab.wait(computing, copied)
            lab.compute(computing, load, Touch(device, pattern, "consume"), counters, slot)
            computing.synchronize()
            copying.synchronize()
        careless, careful = counters.read()
    assert careless > 0
    assert careful == 0


@pytest.mark.parametrize("memory", KINDS)
def test_memory_returns_to_gpu_and_host_also_after_an_error(lab: CudaLab, memory: HostMemory) -> None:
    def break_off() -> None:
        with lab.host_buffer(256 * MIB, memory), lab.device_buffer(256 * MIB):
            raise RuntimeError("broken off")

    with pytest.raises(RuntimeError):
        break_off()  # the driver keeps pools that the first use fills
    free, pinned = runtime.memGetInfo()[0], pinned_pages()
    with pytest.raises(RuntimeError):
        break_off()
    assert abs(runtime.memGetInfo()[0] - free) < 4 * MIB
    assert abs(pinned_pages() - pinned) <= PAGES_OFF


def test_the_kernel_counts_all_pinned_memory_but_write_combined() -> None:
    """Write-combined pages are the driver's own: it maps them uncached and does not pin a user's."""
    held = {}
    with CudaLab(0) as lab:
        for memory in KINDS:
            before = pinned_pages()
            with lab.host_buffer(512 * MIB, memory):
                held[memory] = pinned_pages() - before
    counted = {memory for memory, pages in held.items() if abs(pages - 512 * MIB // 4096) <= PAGES_OFF}
    uncounted = {memory for memory, pages in held.items() if abs(pages) <= PAGES_OFF}
    assert (counted, uncounted) == ({"pinned", "mapped", "registered"}, {"pageable", "write_combined"}), held


def test_after_a_failed_registration_the_lab_goes_on(lab: CudaLab) -> None:
    from pinscope.lab.cuda_memory import allocate

    with lab.host_buffer(MIB, "registered") as buffer:
        with pytest.raises(MeasurementFailed, match="could not be had"):
            allocate(lambda: runtime.hostRegister(buffer.address, MIB, 0), MIB, "registered")
        with lab.device_buffer(MIB) as device:
            pattern = lab.fresh_pattern()
            lab.fill(device, pattern)
            assert lab.wrong_words(device, pattern) == 0


def test_more_gpu_memory_than_there_is_gives_one_line_with_the_size(lab: CudaLab) -> None:
    with pytest.raises(NotEnoughMemory, match="1 TiB of memory of GPU 0") as caught, lab.device_buffer(2**40):
        pass
    assert "\n" not in str(caught.value)


def test_a_gpu_that_is_not_there_is_named() -> None:
    with pytest.raises(NoDevice, match="GPU 99"), CudaLab(99):
        pass
    runtime.setDevice(0)


@pytest.mark.two_gpus
def test_a_peer_lab_copies_on_its_own_gpu_at_the_same_time(lab: CudaLab) -> None:
    nbytes = 256 * MIB
    with lab.peer(1) as other, ExitStack() as stack:
        jobs = []
        for one in (lab, other):
            host = stack.enter_context(one.host_buffer(nbytes, "pinned"))
            device = stack.enter_context(one.device_buffer(nbytes))
            assert runtime.pointerGetAttributes(device.address).device == one.device
            stream = stack.enter_context(one.stream())
            start, end = stack.enter_context(one.event()), stack.enter_context(one.event())
            pattern = one.fresh_pattern()
            one.fill(host, pattern)
            jobs.append((one, host, device, stream, start, end, pattern))
        for one, host, device, stream, start, end, _ in jobs:
            start.record(stream)
            one.copy_to_device(device, host, stream)
            end.record(stream)
        for one, _, device, stream, _, _, pattern in jobs:
            stream.synchronize()
            assert one.wrong_words(device, pattern) == 0
