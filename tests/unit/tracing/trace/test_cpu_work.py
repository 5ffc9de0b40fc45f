"""What a trace says of the CPU's work for copies, beside the driver's calls."""

from __future__ import annotations

from typing import Any

import pytest

from pinscope.experiments.registry import read_run
from pinscope.records.run import Finding, Reading
from pinscope.tracing.sites import PINNING_SECONDS
from pinscope.tracing.trace.answer import LINES
from tests.data.synthetic_trace import MIB, host_call, place, program, row, run, site

PINNED = {"source": "pinned", "call_seconds": 0.001, "idle_seconds": 0.02, "copy_seconds": 0.02}
HIDDEN = {"pinned_source_count": 100, "reason": "converted: float32 → float16"}
SAVED = 1.0 - 1000 * MIB / 50e9
"""By pinning a site that has stood for a second."""


def read(*rows: dict[str, Any]) -> Reading:
    return read_run(run(), rows)


def figures(finding: Finding) -> dict[str, Any]:
    return {figure.name: figure.value for figure in finding.evidence}


def rules(reading: Reading) -> list[str]:
    return [finding.rule for finding in reading.findings]


def test_a_line_that_pins_at_each_use_is_named_with_its_seconds_on_the_cpu_and_what_the_gpu_idled() -> None:
    reading = read(program(), site(34, **PINNED), host_call(33, "Tensor.pin_memory"))
    assert rules(reading) == ["cpu-work"]
    (finding,) = reading.findings
    assert figures(finding)["On the CPU, pinning too"] == 1.0
    assert figures(finding)["Saved without this work (about)"] == pytest.approx(0.6 * 99 / 100)  # pinning once
    assert {each.key: each.value for each in reading.headline}["work"] == 1.0
    assert reading.verdict == "Pin once what train.py:33 pins 100 times: saves about 590 ms of 10.0 s (5.9 %)."


def test_copies_that_pinning_slows_down_take_what_the_link_needs_without_it() -> None:
    link = 1000 * MIB / 50e9
    for took, slower in ((link * 1.3, link * 0.3), (link * 10, link / 2)):
        reading = read(program(), site(34, **{**PINNED, "copy_seconds": took}), host_call(33, "Tensor.pin_memory"))
        saved = figures(reading.findings[0])["Saved without this work (about)"]
        assert saved == pytest.approx(0.6 * 99 / 100 + slower)


def test_work_of_less_than_a_hundredth_of_the_time_is_in_the_table_only() -> None:
    reading = read(program(), site(34, **PINNED), host_call(33, "Tensor.pin_memory", host_seconds=0.09, idle_seconds=0))
    assert rules(reading) == []
    (table,) = (each for each in reading.tables if each.title == "What the CPU did for copies")
    assert table.rows[0][:2] == ("train.py:33", "Tensor.pin_memory")


def test_to_pin_once_or_to_copy_without_touching_the_data_is_no_work() -> None:
    assert rules(read(program(), site(34, **PINNED), host_call(33, "Tensor.pin_memory", count=1))) == []
    assert rules(read(program(), site(34, **PINNED), host_call(34, "Tensor.to"))) == []


def test_the_parts_of_a_line_that_pins_are_told_once() -> None:
    pins = place("allocation", 33, call="cuMemHostAlloc", count=100, bytes=MIB, call_seconds=0.5, left_count=0,
                 left_bytes=0)  # fmt: skip
    elsewhere = {**pins, "line": 44, "repeat": 1}
    reading = read(program(), host_call(33, "Tensor.pin_memory"), pins, elsewhere)
    assert sorted(rules(reading)) == ["cpu-work", "pinned-memory-in-a-loop"]
    assert any("train.py:44" in finding.title for finding in reading.findings)
    (finding,) = (each for each in reading.findings if each.rule == "cpu-work")
    assert figures(finding)["On the CPU, pinning too"] == 1.5
    assert figures(finding)["Saved without this work (about)"] == pytest.approx((0.6 + 0.5) * 99 / 100)


def test_what_an_allocator_pins_in_a_few_calls_of_the_loop_is_pinned_before_it() -> None:
    pins = place("allocation", 33, call="cudaHostAlloc", count=3, bytes=3 * MIB, call_seconds=0.3, left_count=0,
                 left_bytes=0)  # fmt: skip
    (finding,) = read(program(), host_call(33, "Tensor.pin_memory"), pins).findings
    assert figures(finding)["Saved without this work (about)"] == pytest.approx((0.6 + 0.3) * 99 / 100)


def test_each_kind_of_work_has_a_remedy_of_its_own() -> None:
    for call, values, begins in [
        ("Tensor.copy_", {"converted_bytes": 1000 * MIB}, "Convert on the GPU"),
        ("Tensor.to", {"gathered_bytes": 1000 * MIB}, "Rearrange on the GPU, not at train.py:33"),
        ("ndarray.get", {}, "Fetch into kept memory"),
        ("tensors from workers", {}, "Let the DataLoader of train.py:33 pin"),
        ("cupy.asarray", {"staged_bytes": 1000 * MIB}, "Fill pinned memory"),
    ]:
        reading = read(program(), site(34, **PINNED), host_call(33, call, **values))
        assert (reading.verdict or "").startswith(begins)


def test_pinned_memory_that_is_copied_as_pageable_is_told_with_the_reason_and_both_parts_saved() -> None:
    work = host_call(33, "Tensor.copy_", converted_bytes=1000 * MIB, pinned_source_count=100, reason=HIDDEN["reason"])
    reading = read(program(), site(33, **HIDDEN), work)
    assert rules(reading) == ["hidden-temporary"]
    (finding,) = reading.findings
    assert figures(finding)["Saved without this work (about)"] == pytest.approx(0.6 + SAVED)
    assert "float32 → float16" in finding.detail


def test_pageable_memory_that_is_converted_is_pageable_all_the_same() -> None:
    work = host_call(33, "Tensor.copy_", converted_bytes=1000 * MIB, reason=HIDDEN["reason"])
    assert sorted(rules(read(program(), site(33, reason=HIDDEN["reason"]), work))) == ["cpu-work", "pageable-copies"]


def test_work_that_goes_where_the_line_s_copies_come_from_pinned_memory_is_not_saved_twice() -> None:
    reading = read(program(), site(33), host_call(33, "cupy.asarray", staged_bytes=1000 * MIB, first_seconds=0.0))
    assert sorted(rules(reading)) == ["cpu-work", "pageable-copies"]
    assert (reading.verdict or "").startswith("Pin what train.py:33 copies")
    (lines,) = (table for table in reading.tables if table.title == LINES)
    assert lines.rows[0][1] == pytest.approx(SAVED)


def loader(received: float, waited: float, processor: float = 0.0, **values: Any) -> Reading:
    """What a DataLoader that pins saves of 10 s, of which copying its batches takes 1 s."""
    line = {"file": "/srv/train.py", "line": 30, "function": "main"}
    rows = [
        row("device", device=0, busy_seconds=2.0, kernels=100),
        site(33, source_line='x.to("cuda", non_blocking=True)', **{"received_count": 100, **values}),
        host_call(30, "tensors from workers", call_seconds=received, host_seconds=received, idle_seconds=0.0,
                  processor_seconds=processor),
        row("host_call", call="DataLoader", count=100, bytes=0, call_seconds=waited + received, host_seconds=0,
            idle_seconds=0, wait_seconds=waited, pins_batches=False, **line),
    ]  # fmt: skip
    return read(program(), *rows)


def test_a_dataloader_that_pins_moves_receiving_and_copying_into_a_thread() -> None:
    for received, processor, waited, saved in [
        (0.5, 0.0, 0.1, 1.5),  # copying and receiving
        (0.5, 0.4, 0.1, 1.1),  # receiving is Python, for the most part
        (6.0, 0.0, 0.1, 3.0),  # a thread receives and copies for 7 of 10 s: the rest runs beside it
        (0.5, 0.0, 5.0, 0.0),  # the workers are slower
    ]:
        assert loader(received, waited, processor).headline[0].value == pytest.approx(saved, abs=0.01)
    many = loader(0.5, 0.1, received_count=10_000)  # to pin each takes Python as well
    assert many.headline[0].value == pytest.approx(1.5 - 10_000 * PINNING_SECONDS)


def test_copies_of_memory_that_no_worker_sent_are_estimated_as_ever() -> None:
    reading = loader(0.5, 0.1, received_count=0)
    assert reading.headline[0].value == pytest.approx(SAVED)
    assert (reading.verdict or "").startswith("Pin what train.py:33 copies, where it is made: ")
    assert (loader(0.5, 0.1).verdict or "").startswith("Let the DataLoader of train.py:33 pin: ")
