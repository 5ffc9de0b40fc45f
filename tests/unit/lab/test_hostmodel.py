"""The host model shows the mechanism with real bytes: who is held, what overlaps, what arrives.

Times are compared only where the mechanism makes a large difference, and again if others kept this machine busy;
where order matters, a load stands in the way.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median

import pytest

from pinscope.errors import MeasurementFailed, NoDevice, NotEnoughMemory, NotPossible
from pinscope.lab.hostengine import SLOT_BYTES, Area, HostArea, HostStream
from pinscope.lab.hostmodel import STAGING_BYTES, HostModelLab
from pinscope.lab.protocol import Lab, Load, LoadData
from pinscope.records.run import HostMemory

MIB = 1 << 20
LONG = Load(0.1, 0.1)
"""Long enough that what is queued behind it has surely not begun when a call returns."""


@contextmanager
def parts(
    lab: HostModelLab, nbytes: int = MIB, memory: HostMemory = "pinned"
) -> Iterator[tuple[HostArea, Area, HostStream]]:
    """Host memory, memory of the device and a stream."""
    with lab.host_buffer(nbytes, memory) as host, lab.device_buffer(nbytes) as device, lab.stream() as stream:
        yield host, device, stream


def in_a_quiet_moment(holds: Callable[[], bool]) -> bool:
    """True once ``holds`` does: programs beside this one may disturb some of the tries."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        if holds():
            return True
    return False


def locked_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmLck:")[1].split()[0]) * 1024


# What arrives


@pytest.mark.parametrize("nbytes", [8, 65_528, SLOT_BYTES, SLOT_BYTES + 8, 2 * MIB + 8])
@pytest.mark.parametrize("memory", ["pageable", "pinned", "registered"])
def test_content_goes_to_the_device_and_back(lab: HostModelLab, memory: HostMemory, nbytes: int) -> None:
    pattern = lab.fresh_pattern()
    with parts(lab, nbytes, memory) as (there, device, stream), lab.host_buffer(nbytes, memory) as back:
        lab.fill(there, pattern)
        assert lab.wrong_words(device, pattern) == lab.wrong_words(back, pattern) == nbytes // 8
        lab.copy_to_device(device, there, stream)
        lab.copy_to_host(back, device, stream)
        stream.synchronize()
        assert lab.wrong_words(device, pattern) == lab.wrong_words(back, pattern) == 0


def test_a_part_is_copied_and_its_surroundings_are_left_alone(lab: HostModelLab) -> None:
    old, new = lab.fresh_pattern(), lab.fresh_pattern()
    with parts(lab) as (host, device, stream):
        lab.fill(device, old)
        part = host.part(4096, 8192)
        lab.fill(part, new)
        lab.copy_to_device(device.part(16, 16384).part(48, 8192), part, stream)
        stream.synchronize()
        assert lab.wrong_words(device.part(64, 8192), new) == 0
        assert lab.wrong_words(device, old) == 8192 // 8
        assert part.memory == "pinned"
        assert part.address == host.address + 4096


# Who is held


@pytest.mark.parametrize("memory", ["pinned", "registered"])
def test_a_call_with_locked_memory_returns_before_the_copy_is_done(lab: HostModelLab, memory: HostMemory) -> None:
    pattern = lab.fresh_pattern()
    with parts(lab, memory=memory) as (host, device, stream):
        lab.fill(host, pattern)
        lab.compute(stream, LONG)
        lab.copy_to_device(device, host, stream)
        assert lab.wrong_words(device, pattern) == MIB // 8
        stream.synchronize()
        assert lab.wrong_words(device, pattern) == 0


@pytest.mark.parametrize("through_event", [False, True])
def test_a_pageable_call_towards_the_device_waits_for_its_stream_and_what_that_waits_for_and_may_reuse_its_memory(
    lab: HostModelLab, through_event: bool
) -> None:
    pattern = lab.fresh_pattern()
    with parts(lab, 3 * MIB, "pageable") as (host, device, copies), lab.stream() as kernels, lab.event() as event:
        lab.fill(host, pattern)
        begun = time.perf_counter()
        lab.compute(kernels if through_event else copies, LONG)
        event.record(kernels)
        lab.wait(copies, event)
        lab.copy_to_device(device, host, copies)
        assert time.perf_counter() - begun >= LONG.seconds * 0.9
        lab.fill(host, lab.fresh_pattern())  # all is staged: the source is free again
        copies.synchronize()
        assert lab.wrong_words(device, pattern) == 0


def test_a_pageable_call_towards_the_host_returns_when_all_has_arrived(lab: HostModelLab) -> None:
    pattern = lab.fresh_pattern()
    with parts(lab, 3 * MIB, "pageable") as (host, device, stream):
        lab.compute(stream, Load(0.02, 0.02), LoadData(device, pattern, "produce"))
        lab.copy_to_host(host, device, stream)
        assert lab.wrong_words(host, pattern) == 0


# Order


def test_an_event_orders_two_streams_and_its_absence_shows_stale_content(lab: HostModelLab) -> None:
    for ordered, wrong in ((True, 0), (False, MIB // 8)):
        pattern = lab.fresh_pattern()
        with parts(lab) as (host, device, copies), lab.stream() as kernels, lab.event() as event:
            lab.compute(kernels, LONG, LoadData(device, pattern, "produce"))
            event.record(kernels)
            if ordered:
                lab.wait(copies, event)
            lab.copy_to_host(host, device, copies)
            copies.synchronize()
            assert lab.wrong_words(host, pattern) == wrong


def test_a_consumer_finds_stale_words_unless_it_waits_for_the_copy(lab: HostModelLab) -> None:
    short = Load(0.001, 0.001)
    for waits in (False, True):
        pattern = lab.fresh_pattern()
        with (
            parts(lab, 4 * MIB) as (host, device, copies),
            lab.stream() as kernels,
            lab.event() as arrived,
            lab.counters(1) as counters,
        ):
            lab.fill(host, pattern)
            with lab.hold(copies):
                lab.copy_to_device(device, host, copies)
                arrived.record(copies)
                if waits:
                    lab.wait(kernels, arrived)
                lab.compute(kernels, short, LoadData(device, pattern, "consume"), counters)
                if not waits:
                    kernels.synchronize()
            kernels.synchronize()
            assert (counters.read() == (0,)) is waits


def test_work_behind_a_waiting_operation_is_held_up_in_the_same_engine(lab: HostModelLab) -> None:
    """Hardware queues have this head-of-line blocking too."""
    with ExitStack() as stack:
        host, device, first = stack.enter_context(parts(lab, 4096))
        second, third = (stack.enter_context(lab.stream()) for _ in range(2))
        computed, copied, back = (stack.enter_context(lab.event()) for _ in range(3))
        lab.compute(first, LONG)
        computed.record(first)
        lab.wait(second, computed)
        lab.copy_to_device(device, host, second)
        lab.copy_to_device(device, host, third)  # depends on nothing, but stands in the same queue
        copied.record(third)
        with lab.stream() as other_way:
            lab.copy_to_host(host, device, other_way)
            back.record(other_way)
            other_way.synchronize()
        third.synchronize()
        assert lab.elapsed(computed, copied) >= 0
        assert lab.elapsed(back, computed) > 0


def test_waiting_for_an_event_that_was_never_recorded_waits_for_nothing_and_it_has_no_time(lab: HostModelLab) -> None:
    with lab.stream() as stream, lab.event() as event:
        with pytest.raises(MeasurementFailed, match="has not been reached"):
            lab.elapsed(event, event)
        lab.wait(stream, event)
        lab.compute(stream, Load(0.001, 0.001))
        stream.synchronize()


# Times


@pytest.mark.alone
@pytest.mark.parametrize("produces", [False, True])
def test_a_calibrated_load_takes_its_time_within_two_percent_with_what_it_writes(
    lab: HostModelLab, produces: bool
) -> None:
    asked = 0.05 if produces else 0.01
    with parts(lab, 4 * MIB) as (_, device, stream), lab.event() as start, lab.event() as end:

        def takes_its_time() -> bool:
            load = lab.calibrate(asked)
            took = []
            for _ in range(7):
                start.record(stream)
                lab.compute(stream, load, LoadData(device, lab.fresh_pattern(), "produce") if produces else None)
                end.record(stream)
                end.synchronize()
                took.append(lab.elapsed(start, end))
            return abs(median(took) - asked) <= 0.02 * asked

        assert in_a_quiet_moment(takes_its_time)


@pytest.mark.alone
def test_a_load_leaves_the_processor_to_others(lab: HostModelLab) -> None:
    with lab.stream() as stream:

        def idles() -> bool:
            before = time.process_time()
            lab.compute(stream, Load(0.3, 0.3))
            stream.synchronize()
            return time.process_time() - before < 0.015

        assert in_a_quiet_moment(idles)


def test_an_event_in_an_idle_stream_is_reached_at_once_and_behind_work_when_that_is_done(lab: HostModelLab) -> None:
    with lab.stream() as stream, lab.event() as start, lab.event() as end:
        start.record(stream)
        assert lab.elapsed(start, start) == 0
        assert start.is_reached()
        lab.compute(stream, LONG)
        end.record(stream)
        assert not end.is_reached()
        with pytest.raises(MeasurementFailed, match="has not been reached; synchronize first"):
            lab.elapsed(start, end)
        end.synchronize()
        assert end.is_reached()
        assert lab.elapsed(start, end) >= LONG.seconds * 0.99


# Overlap


class Recipe:
    """A pipeline of loads that consume what copies bring; each chunk is the same 4 MiB, copied several times."""

    chunks, copies, nbytes = 8, 20, 4 * MIB

    def __init__(self, lab: Lab, memory: HostMemory, streams: int, depth: int, load: Load) -> None:
        self.issue_seconds = 0.0
        with ExitStack() as stack:
            host = stack.enter_context(lab.host_buffer(self.nbytes, memory))
            ring = [stack.enter_context(lab.device_buffer(self.nbytes)) for _ in range(depth)]
            copying = stack.enter_context(lab.stream())
            computing = stack.enter_context(lab.stream()) if streams == 2 else copying
            start, end = stack.enter_context(lab.event()), stack.enter_context(lab.event())
            filled = [stack.enter_context(lab.event()) for _ in range(self.chunks)]
            used = [stack.enter_context(lab.event()) for _ in range(self.chunks)]
            counters = stack.enter_context(lab.counters(self.chunks))
            pattern = lab.fresh_pattern()
            lab.fill(host, pattern)
            start.record(copying)
            for chunk in range(self.chunks):
                device = ring[chunk % depth]
                if chunk >= depth:
                    lab.wait(copying, used[chunk - depth])
                self._copy(lambda: lab.copy_to_device(device, host, copying))  # noqa: B023 - called at once
                filled[chunk].record(copying)
                lab.wait(computing, filled[chunk])
                lab.compute(computing, load, LoadData(device, pattern, "consume"), counters, chunk)
                used[chunk].record(computing)
            end.record(computing)
            end.synchronize()
            self.seconds = lab.elapsed(start, end)
            self.wrong = sum(counters.read())

    def _copy(self, copy: Callable[[], None]) -> None:
        begun = time.perf_counter()
        for _ in range(self.copies):
            copy()
        self.issue_seconds += time.perf_counter() - begun


@pytest.mark.alone
def test_copies_hide_behind_loads_only_with_the_full_recipe(lab: HostModelLab) -> None:
    def hides() -> bool:
        copies_alone = min(Recipe(lab, "pinned", 2, 2, Load(1e-6, 0.0)).seconds for _ in range(3))
        load = lab.calibrate(copies_alone / Recipe.chunks)

        def hidden(streams: int, depth: int) -> float:
            runs = [Recipe(lab, "pinned", streams, depth, load) for _ in range(3)]
            assert all(run.wrong == 0 for run in runs)
            return (2 * copies_alone - min(run.seconds for run in runs)) / copies_alone

        full, one_stream, no_double_buffer = hidden(2, 2), hidden(1, 2), hidden(2, 1)
        return full > 0.4 and one_stream < 0.5 * full and no_double_buffer < 0.5 * full

    assert in_a_quiet_moment(hides)


@pytest.mark.alone
def test_pageable_copies_hold_the_caller_through_the_pipeline_and_pinned_ones_do_not(lab: HostModelLab) -> None:
    def held(memory: HostMemory) -> float:
        run = Recipe(lab, memory, 2, 2, Load(0.008, 0.008))
        assert run.wrong == 0
        return run.issue_seconds / run.seconds

    assert in_a_quiet_moment(lambda: held("pageable") > 0.5 and held("pinned") < 0.1)


# What has no meaning here, and misuse


@pytest.mark.parametrize("memory", ["write_combined", "mapped", "managed"])
def test_kinds_without_a_meaning_are_refused_with_the_reason(lab: HostModelLab, memory: HostMemory) -> None:
    reason = lab.why_not(memory)
    assert reason
    with pytest.raises(NotPossible) as refusal, lab.host_buffer(4096, memory):
        pass
    assert str(refusal.value) == reason


def test_the_kernel_copier_is_refused_and_the_engine_is_possible(lab: HostModelLab) -> None:
    assert lab.why_not("pageable") is lab.why_not("pinned") is lab.why_not("registered") is None
    with parts(lab, 64) as (host, device, stream), pytest.raises(NotPossible, match="kernels that reach host memory"):
        lab.copy_to_device(device, host, stream, "kernel")


def test_device_0_is_the_only_peer(lab: HostModelLab) -> None:
    with lab.peer(0) as peer:
        assert peer is lab
    assert lab.device_id_of(0) == lab.device_id
    assert lab.near == {}
    with pytest.raises(NoDevice, match="there is no device 1"), lab.peer(1):
        pass


def test_memory_is_refused_after_its_release(lab: HostModelLab) -> None:
    with lab.host_buffer(4096, "pinned") as host:
        part = host.part(8, 16)
    with pytest.raises(ValueError, match="released"):
        lab.fill(part, lab.fresh_pattern())


def test_a_stream_of_another_lab_is_refused(lab: HostModelLab) -> None:
    class Foreign:
        def synchronize(self) -> None: ...

    with pytest.raises(TypeError, match="Foreign belongs to another lab"):
        lab.compute(Foreign(), LONG)


# Errors inside an engine


def test_an_engine_error_is_told_at_every_wait_and_at_the_end_and_later_work_is_skipped() -> None:
    def wait_for_each() -> None:
        with HostModelLab() as lab, lab.stream() as stream, lab.event() as start, lab.event() as end:
            start.record(stream)
            begun = time.perf_counter()
            _break(lab)
            lab.compute(stream, Load(5.0, 5.0))
            end.record(stream)
            for wait in (stream.synchronize, end.synchronize, partial(lab.elapsed, start, end)):
                with pytest.raises(MeasurementFailed, match="compute engine broke off: IndexError"):
                    wait()
                assert time.perf_counter() - begun < 4.0

    with pytest.raises(MeasurementFailed, match="IndexError"):
        wait_for_each()


def _break(lab: HostModelLab) -> None:
    with lab.device_buffer(64) as device, lab.stream() as stream, lab.counters(1) as counters:
        lab.compute(stream, LONG, LoadData(device, lab.fresh_pattern(), "consume"), counters, slot=7)


def test_an_engine_error_does_not_hide_the_error_that_ends_the_lab() -> None:
    def fail() -> None:
        with HostModelLab() as lab:
            _break(lab)
            raise KeyError("first")

    with pytest.raises(KeyError, match="first"):
        fail()


# Memory


def test_only_the_locked_kinds_and_the_staging_rings_are_locked_and_all_is_given_back() -> None:
    before = locked_bytes()
    with pytest.raises(KeyError), HostModelLab() as lab, lab.host_buffer(MIB, "pinned"):
        raise KeyError
    assert locked_bytes() == before
    with HostModelLab() as lab:
        assert locked_bytes() - before == STAGING_BYTES
        for memory, locked in (("pageable", 0), ("pinned", MIB), ("registered", MIB)):
            with lab.host_buffer(MIB, memory):  # type: ignore[arg-type]
                assert locked_bytes() - before == STAGING_BYTES + locked
        with lab.device_buffer(MIB):
            assert locked_bytes() - before == STAGING_BYTES
    assert locked_bytes() == before


def test_memory_is_released_only_when_no_copy_uses_it_any_more(lab: HostModelLab) -> None:
    with lab.stream() as stream, lab.event() as done:
        with lab.host_buffer(MIB, "pinned") as host, lab.device_buffer(MIB) as device:
            lab.compute(stream, LONG)
            lab.copy_to_device(device, host, stream)
            done.record(stream)
        assert lab.elapsed(done, done) == 0  # reached: the release has waited


def test_leaving_the_lab_finishes_what_is_queued_and_gives_the_interpreter_back_its_pace() -> None:
    pace = sys.getswitchinterval()
    with HostModelLab() as lab, lab.stream() as stream, lab.event() as done:
        assert sys.getswitchinterval() < pace
        lab.compute(stream, LONG)
        done.record(stream)
    assert lab.elapsed(done, done) == 0
    assert sys.getswitchinterval() == pace


def test_more_memory_than_there_is_is_refused_in_one_line(lab: HostModelLab) -> None:
    with pytest.raises(NotEnoughMemory, match=r"^.*gives no 4 PiB of memory.*$"), lab.host_buffer(1 << 52, "pageable"):
        pass


LOCK_LITTLE = """
import os, resource
import numpy.random  # loaded before the privileges go: the checkout may be unreadable afterwards
from pinscope.errors import NotEnoughMemory
from pinscope.lab.hostmodel import HostModelLab
resource.setrlimit(resource.RLIMIT_MEMLOCK, ({limit}, {limit}))
if os.getuid() == 0:
    os.setuid(65534)  # gives up CAP_IPC_LOCK with all others
try:
    with HostModelLab() as lab, lab.host_buffer(1 << 20, "pinned"):
        print("locked")
except NotEnoughMemory as error:
    print(error)
status = open("/proc/self/status").read()
print(status.split("VmLck:")[1].split()[0])
"""


@pytest.mark.parametrize("limit", [65536, STAGING_BYTES + 65536, 0])
def test_a_locking_limit_is_named_with_what_to_do_and_nothing_stays_locked(limit: int) -> None:
    child = subprocess.run(
        [sys.executable, "-c", LOCK_LITTLE.format(limit=limit)],
        capture_output=True, text=True, check=True, timeout=60, cwd=Path(__file__).parents[3],
    )  # fmt: skip
    message, locked = child.stdout.splitlines()
    assert re.match(r"cannot lock 1 MiB of memory \(.*RLIMIT_MEMLOCK is .*ulimit -l.*CAP_IPC_LOCK", message)
    assert locked == "0"


def test_memory_of_devices_is_copied_in_stream_order(lab: HostModelLab) -> None:
    pattern = lab.fresh_pattern()
    with lab.device_buffer(2**16) as source, lab.device_buffer(2**16) as target, lab.stream() as stream:
        lab.fill(source, pattern)
        lab.copy_on_devices(target, source, stream)
        stream.synchronize()
        assert lab.wrong_words(target, pattern) == 0
