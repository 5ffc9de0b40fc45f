"""The cuda lab against CUDA itself: kinds of memory, loads, holds, and what one copy and one more copy take."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping
from contextlib import ExitStack
from statistics import median

import pytest
from cupy.cuda import runtime

from pinscope.errors import MeasurementFailed, NoDevice, NotEnoughMemory
from pinscope.experiments.bandwidth.experiment import Bandwidth, BandwidthObservation, BandwidthParams
from pinscope.experiments.bandwidth.ways import Flow, HostState, time_copies
from pinscope.lab import cuda_handles
from pinscope.lab.cuda import CudaLab
from pinscope.lab.harness import Harness
from pinscope.lab.protocol import Copier, LoadData
from pinscope.records.run import HostMemory, OneWay
from tests.gpu.machine import MIB, PAGES_OFF, compiled, pinned_pages

KINDS: tuple[HostMemory, ...] = ("pageable", "pinned", "write_combined", "mapped", "registered")
UNREGISTERED, HOST = 0, 1  # cudaMemoryTypeUnregistered, cudaMemoryTypeHost


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
            lab.compute(computing, load, LoadData(device, pattern, "consume"), counters, slot)
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


C_ON_H100: Mapping[tuple[str, int], float] = {
    ("h2d", 4096): 2.5e-6, ("h2d", 65536): 3.7e-6, ("h2d", 2**20): 22.5e-6,
    ("d2h", 4096): 1.6e-6, ("d2h", 65536): 2.8e-6, ("d2h", 2**20): 20.5e-6,
}  # fmt: skip
"""Seconds of one more copy on an H100, in C++ behind a kernel that holds the stream: best of nine."""
BOTH_BY_KERNEL = 42.4e9
"""Bytes/second each way of nvbandwidth 0.8's kernels in both directions at once, on an H200."""
ONE_WAY_BY_KERNEL = {"h2d": 50.9e9, "d2h": 52.4e9}
"""The same one way, on an H100; an H200 has 51.4 and 52.7."""


def measured(lab: CudaLab, **overrides: object) -> list[BandwidthObservation]:
    """Counted rows of a full run of pinned memory alone."""
    usual = {"memory": "pinned", "copiers": "engine", "caches": "cold", "time_limit": 2.0}
    params = BandwidthParams.preset("cuda", quick=False).with_overrides({**usual, **overrides})
    return [row for row in Bandwidth().measure(params, lab, Harness()) if not row.warmup]


@pytest.fixture(scope="module")
def by_c(tmp_path_factory: pytest.TempPathFactory) -> Mapping[tuple[str, int], float]:
    """Seconds of one more copy by a C program on this host."""
    program = compiled("copies.c", tmp_path_factory.mktemp("copies"))
    lines = subprocess.run([program], check=True, capture_output=True, text=True, timeout=60).stdout.splitlines()
    found = {}
    for way, nbytes, microseconds in (line.split() for line in lines):
        found[way, int(nbytes)] = float(microseconds) * 1e-6
    return found


def test_one_more_copy_takes_what_it_takes_a_c_program(lab: CudaLab, by_c: Mapping[tuple[str, int], float]) -> None:
    rows = measured(lab, sizes="4KiB,64KiB,1MiB", directions="h2d,d2h")
    found = {
        (way, size): median(row.one_more_seconds for row in rows if (row.direction, row.bytes) == (way, size))
        for way, size in C_ON_H100
    }
    for key, seconds in found.items():
        assert seconds <= 1.1 * max(by_c[key], C_ON_H100[key]), key
        assert seconds >= 0.8 * min(by_c[key], C_ON_H100[key]), key


@pytest.mark.parametrize("by_driver", [True, False])
@pytest.mark.parametrize("copier", ["engine", "kernel"])
def test_nothing_begins_before_the_hold_ends(
    lab: CudaLab, copier: Copier, by_driver: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not by_driver:
        monkeypatch.setattr(cuda_handles.Gate, "_wait_by_driver", lambda _gate, _handle: False)
    pattern = lab.fresh_pattern()
    with ExitStack() as stack:
        host = stack.enter_context(lab.host_buffer(2**20, "pinned"))
        device = stack.enter_context(lab.device_buffer(2**20))
        stream, end = stack.enter_context(lab.stream()), stack.enter_context(lab.event())
        lab.fill(host, pattern)
        with lab.hold(stream):
            for _ in range(64):
                lab.copy_to_device(device, host, stream, copier)
            end.record(stream)
            time.sleep(0.05)
            with pytest.raises(runtime.CUDARuntimeError, match="NotReady"):
                runtime.eventElapsedTime(end.handle, end.handle)  # type: ignore[attr-defined]
        stream.synchronize()
        assert lab.wrong_words(device, pattern) == 0


def test_a_hold_ends_with_an_error_and_refuses_what_would_wait_for_it(lab: CudaLab) -> None:
    with ExitStack() as stack:
        host = stack.enter_context(lab.host_buffer(4096, "pageable"))
        device = stack.enter_context(lab.device_buffer(4096))
        stream = stack.enter_context(lab.stream())
        for call in (
            lambda: lab.copy_to_device(device, host, stream),
            lambda: lab.copy_to_host(host, device, stream),
            stream.synchronize,
        ):
            with pytest.raises(MeasurementFailed, match="would never end"), lab.hold(stream):
                call()
            stream.synchronize()
        with lab.hold(stream), pytest.raises(MeasurementFailed, match="held already"), lab.hold(stream):
            pass


@pytest.mark.parametrize("size", ["256MiB", "512MiB"])
def test_kernels_copy_both_ways_at_once_as_nvbandwidths_do(lab: CudaLab, size: str) -> None:
    rows = measured(lab, sizes=size, copiers="kernel", precision=0.005)
    rates = {
        way: median(row.bytes / row.one_more_seconds for row in rows if row.direction == way)
        for way in ("h2d", "d2h", "bidirectional")
    }
    assert rates["bidirectional"] >= 0.97 * BOTH_BY_KERNEL, rates
    assert sum(row.wrong_words for row in rows) == 0
    for way, rate in ONE_WAY_BY_KERNEL.items():
        assert rates[way] >= 0.98 * rate, rates


@pytest.mark.parametrize("nbytes", [8, 24, 65_528, 3 * 2**20 + 8])
def test_a_kernel_that_copies_both_ways_brings_every_word_and_no_more(lab: CudaLab, nbytes: int) -> None:
    """Words beyond the end keep what they held: the last thread block reaches further than the buffers."""
    with ExitStack() as stack:
        hosts = [stack.enter_context(lab.host_buffer(nbytes + 512, "pinned")) for _ in range(2)]
        devices = [stack.enter_context(lab.device_buffer(nbytes + 512)) for _ in range(2)]
        stream = stack.enter_context(lab.stream())
        inward, outward, old = (lab.fresh_pattern() for _ in range(3))
        for buffer, pattern in ((hosts[0], inward), (devices[1], outward), (devices[0], old), (hosts[1], old)):
            lab.fill(buffer, pattern)
        parts = [buffer.part(0, nbytes) for buffer in (devices[0], hosts[0], hosts[1], devices[1])]
        lab.copy_both_ways(*parts, stream)  # type: ignore[arg-type]
        stream.synchronize()
        assert lab.wrong_words(parts[0], inward) == 0
        assert lab.wrong_words(parts[2], outward) == 0
        for beyond in (devices[0].part(nbytes, 512), hosts[1].part(nbytes, 512)):
            assert lab.wrong_words(beyond, old.part(nbytes)) == 0


def test_flows_of_one_device_begin_together(lab: CudaLab) -> None:
    with ExitStack() as stack:
        ways: tuple[OneWay, OneWay] = ("h2d", "d2h")
        flows = [Flow(stack, lab, way, HostState("pinned"), 2**24) for way in ways]
        apart = []
        for _ in range(20):
            for flow in flows:
                flow.prepare(1)
            time_copies(flows, "engine", 1, time.perf_counter)
            apart.append(abs(lab.elapsed(flows[0].start, flows[1].start)) / lab.elapsed(flows[0].start, flows[0].end))
    assert median(apart) < 0.05  # of a copy's time: 2 µs on most hosts, 9 µs on some H200s
