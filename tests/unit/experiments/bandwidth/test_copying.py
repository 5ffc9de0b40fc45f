"""Timed copies on the host model: what is in their time, what is held, and in which state memory is."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from statistics import median

import pytest

from pinscope.errors import MeasurementFailed
from pinscope.experiments.bandwidth import ways
from pinscope.experiments.bandwidth.ways import (
    ROW_BYTES,
    Flow,
    HostState,
    OneWay,
    copies_in_a_row,
    time_copies,
    whole_seconds,
)
from pinscope.lab.hostmodel import HostModelLab
from pinscope.records.run import Cache

KIB, MIB = 2**10, 2**20
SLOW = 0.02
"""Seconds that a call is made to take longer."""


@pytest.fixture
def slow_calls(lab: HostModelLab, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(call: Callable[..., None]) -> Callable[..., None]:
        def later(*arguments: object) -> None:
            time.sleep(SLOW)
            call(*arguments)

        return later

    for name in ("copy_to_device", "copy_to_host"):
        monkeypatch.setattr(lab, name, slow(getattr(lab, name)))


@pytest.mark.parametrize("way", ["h2d", "d2h"])
@pytest.mark.usefixtures("slow_calls")
def test_the_call_is_not_in_the_time_of_a_copy_that_can_be_held(lab: HostModelLab, way: OneWay) -> None:
    with ExitStack() as stack:
        flow = Flow(stack, lab, way, HostState("pinned"), 4 * KIB)
        for copies in (1, 4):
            taken = []
            for _ in range(5):  # a busy machine may delay any one of them, but the call is in all or none
                flow.prepare(copies)
                assert time_copies([flow], "engine", copies, time.perf_counter).issue_seconds >= SLOW
                taken.append(whole_seconds([flow]))
            assert min(taken) < SLOW / 2
        assert flow.wrong_words() == 0


@pytest.mark.usefixtures("slow_calls")
def test_the_call_that_copies_pageable_memory_is_the_copy(lab: HostModelLab) -> None:
    with ExitStack() as stack:
        flow = Flow(stack, lab, "h2d", HostState("pageable", "4k", "warm"), 4 * KIB)
        flow.prepare(1)
        time_copies([flow], "engine", 1, time.perf_counter)
        assert whole_seconds([flow]) >= SLOW
        assert flow.wrong_words() == 0


def test_copies_in_a_row_share_what_the_first_one_waits_for(lab: HostModelLab) -> None:
    """On the host model that is the engine's thread, which has to wake up."""
    with ExitStack() as stack:
        flow = Flow(stack, lab, "h2d", HostState("pinned"), 4 * KIB)

        def each(copies: int) -> float:
            taken = []
            for _ in range(15):
                flow.prepare(copies)
                time_copies([flow], "engine", copies, time.perf_counter)
                taken.append(whole_seconds([flow]) / copies)
            return median(taken)

        assert each(64) < each(1)


def test_both_directions_begin_when_both_are_queued(lab: HostModelLab) -> None:
    with ExitStack() as stack:
        ways: tuple[OneWay, OneWay] = ("h2d", "d2h")
        flows = [Flow(stack, lab, way, HostState("pinned"), 64 * KIB) for way in ways]
        for flow in flows:
            flow.prepare(1)
        time_copies(flows, "engine", 1, time.perf_counter)
        assert abs(lab.elapsed(flows[0].start, flows[1].start)) < 1e-3
        assert whole_seconds(flows) >= max(lab.elapsed(flow.start, flow.end) for flow in flows)
        assert [flow.wrong_words() for flow in flows] == [0, 0]


def test_a_hold_ends_with_an_error_and_refuses_what_would_wait_for_it(lab: HostModelLab) -> None:
    with ExitStack() as stack:
        pageable, pinned = (stack.enter_context(lab.host_buffer(4 * KIB, kind)) for kind in ("pageable", "pinned"))
        device, stream = stack.enter_context(lab.device_buffer(4 * KIB)), stack.enter_context(lab.stream())
        for call in (
            lambda: lab.copy_to_device(device, pageable, stream),
            lambda: lab.copy_to_host(pageable, device, stream),
            stream.synchronize,
        ):
            with pytest.raises(MeasurementFailed, match="would never end"), lab.hold(stream):
                call()
            lab.copy_to_device(device, pinned, stream)
            stream.synchronize()


def test_nothing_begins_before_the_hold_ends(lab: HostModelLab) -> None:
    with ExitStack() as stack:
        host, device = stack.enter_context(lab.host_buffer(MIB, "pinned")), stack.enter_context(lab.device_buffer(MIB))
        stream, pattern = stack.enter_context(lab.stream()), lab.fresh_pattern()
        lab.fill(host, pattern)
        with lab.hold(stream):
            lab.copy_to_device(device, host, stream)
            time.sleep(0.02)
            assert lab.wrong_words(device, pattern) == MIB // 8
        stream.synchronize()
        assert lab.wrong_words(device, pattern) == 0


@pytest.mark.parametrize("way", ["h2d", "d2h"])
@pytest.mark.parametrize("cache", ["cold", "warm", None])
def test_every_state_brings_fresh_content_each_time(
    lab: HostModelLab, cache: Cache | None, way: OneWay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ways, "COLD_BYTES", MIB)
    monkeypatch.setattr(ways, "evicting_bytes", lambda: MIB)
    state = HostState("pageable" if cache else "pinned", "4k" if cache else None, cache)
    with ExitStack() as stack:
        flow = Flow(stack, lab, way, state, MIB)
        flow.resize(64 * KIB)
        for _ in range(5):  # more than the cold memory serves at once
            flow.prepare(5)
            assert flow.wrong_words() > 0
            time_copies([flow], "engine", 5, time.perf_counter)
            assert flow.wrong_words() == 0
            flow.again()
            assert flow.wrong_words() > 0


def test_cold_memory_is_used_once_until_all_has_been_written_again(
    lab: HostModelLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ways, "COLD_BYTES", MIB)
    monkeypatch.setattr(ways, "evicting_bytes", lambda: MIB)
    filled = []
    monkeypatch.setattr(lab, "fill", lambda buffer, _pattern: filled.append(buffer.nbytes))
    with ExitStack() as stack:
        whole = stack.enter_context(lab.ordinary_memory(2 * MIB, "4k"))
        cold = ways._Cold(lab, whole)
        places = [host.address - whole.address for _ in range(8) for host, _ in cold.lay(4 * KIB, 4)]
    assert filled == [2 * MIB, 2 * MIB]
    assert places == [*range(0, MIB, 64 * KIB)] * 2, "each once, far apart, never in what was written last"


def test_copies_in_a_row_move_a_bounded_amount() -> None:
    for nbytes, copies in [(4 * KIB, 64), (MIB, 32), (16 * MIB, 2), (32 * MIB, 1), (2**30, 1)]:
        assert copies_in_a_row(nbytes) == copies
        assert copies == 1 or copies * nbytes <= ROW_BYTES
