"""Limits of a trace: how they are written, and when a trace exceeds them."""

from __future__ import annotations

from typing import Any

import pytest

from pinscope.errors import InvalidParameter
from pinscope.experiments.registry import checked_rows
from pinscope.tracing.limits import exceeded, parse_threshold
from pinscope.tracing.sites import seen_in
from tests.data.synthetic_trace import MIB, place, program, run, site


def lines(*limits: str, rows: list[dict[str, Any]]) -> list[str]:
    return list(exceeded(seen_in(run(), checked_rows("trace", rows)), [parse_threshold(limit) for limit in limits]))


PAGEABLE = [program(), site(33), site(40, bytes=24 * MIB, idle_seconds=0.1, call_seconds=0.3), site(50, "pinned")]


def test_a_limit_is_exceeded_by_more_than_it_says() -> None:
    for limit, line in [
        ("pageable", "1 GiB were copied from or to pageable memory (train.py:33 and 1 more line)"),
        ("pageable=1023MiB", "1 GiB were copied from or to pageable memory (train.py:33 and 1 more line)"),
        ("pageable = 1GiB", None),
        ("idle=10%", "GPU compute stood idle 1.10 s for pageable copies, 11.0 % of 10.0 s"),
        ("idle=12%", None),
        ("idle=1s", "GPU compute stood idle 1.10 s for pageable copies"),
        ("idle=1.2s", None),
        ("idle=150%", None),
        ("idle=0", "GPU compute stood idle 1.10 s for pageable copies"),
        ("pageable=0", "1 GiB were copied from or to pageable memory"),
        ("held=13%", None),
        ("held=1.2s", "the CPU was held 1.30 s for pageable copies, 13.0 % of 10.0 s"),
    ]:
        exceeded_lines = lines(limit, rows=PAGEABLE)
        assert len(exceeded_lines) == (line is not None)
        if line is not None:
            assert exceeded_lines[0].startswith(f"--fail-on {limit.replace(' ', '')}: {line}")


def test_a_share_is_of_the_time_from_the_first_copy_of_a_loop_on() -> None:
    """The weights are copied once, before: the loop begins 5 s later."""
    weights = site(5, count=3, large_count=3, idle_seconds=0.001)
    rows = [program(), weights, site(33, first_seconds=5.0)]
    assert lines("idle=15%", rows=rows)[0].endswith(
        "1.00 s for pageable copies, 20.0 % of 5.00 s (train.py:33 and 1 more line)"
    )
    assert lines("idle=25%", rows=rows) == []


@pytest.mark.parametrize(
    "rows",
    [
        [program(), site(33, "pinned")],
        [program(), site(33, large_count=0, bytes=4096 * 100)],
        [program(copies=0, kernels=0)],
    ],
    ids=["pinned", "small", "no copy"],
)
def test_what_is_not_accused_exceeds_nothing(rows: list[dict[str, Any]]) -> None:
    assert lines("pageable", "idle=0%", "held=0s", rows=rows) == []


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        (
            [program(lost_bytes=4096), site(33, "pinned")],
            "4 KiB of CUPTI's records could not be read, so that copies may be missing",
        ),
        (
            [program(copies=0, kernels=0, unrecorded=2)],
            "not recorded: 2 child processes used CUDA: trace each by itself",
        ),
    ],
    ids=["unreadable records", "processes"],
)
def test_a_trace_that_lacks_something_does_not_pass(rows: list[dict[str, Any]], line: str) -> None:
    assert lines(rows=rows) == []
    assert lines("pageable", rows=rows) == [f"--fail-on: {line}"]


SIZE = "write pageable, or pageable=SIZE such as pageable=100MiB"
IDLE = "write idle=PERCENT or idle=DURATION, such as idle=5% or idle=0.5s"


@pytest.mark.parametrize("text", ["", "pagable", "5%"])
def test_what_is_no_limit_is_refused_with_those_that_there_are(text: str) -> None:
    with pytest.raises(InvalidParameter) as refusal:
        parse_threshold(text)
    assert str(refusal.value) == (
        f"--fail-on {text!r}: the limits are error; pageable, or pageable=SIZE such as pageable=100MiB; "
        "held=PERCENT or held=DURATION, such as held=5% or held=0.5s; "
        "idle=PERCENT or idle=DURATION, such as idle=5% or idle=0.5s"
    )


def test_a_limit_without_an_amount_is_refused_with_how_to_write_it() -> None:
    for text, why in [
        ("error=5", "has an amount: write error"),
        ("pageable=", f"has no size: {SIZE}"),
        ("pageable=abc", f"has no size: {SIZE}"),
        ("pageable=5%", f"has no size: {SIZE}"),
        ("idle", f"has no percentage or duration: {IDLE}"),
        ("idle=5 MiB", f"has no percentage or duration: {IDLE}"),
        ("idle=5 parsecs", f"has no percentage or duration: {IDLE}"),
        ("idle=1%=2", f"has no percentage or duration: {IDLE}"),
        ("idle=5", f"has no unit: {IDLE}"),
        ("pageable=-1", f"has no unit: {SIZE}"),
        ("idle=-1%", ": the limit must be 0 or more"),
        ("pageable=-1B", ": the limit must be 0 or more"),
    ]:
        with pytest.raises(InvalidParameter) as refusal:
            parse_threshold(text)
        assert str(refusal.value) == f"--fail-on {text!r} {why}".replace(" :", ":")


FAILED = {
    "call": "cudaHostRegister", "error": 712, "error_name": "cudaErrorHostMemoryAlreadyRegistered", "count": 1,
}  # fmt: skip


def test_a_call_that_failed_does_not_pass() -> None:
    for calls, line in [
        ([FAILED], "a call of CUDA returned an error (train.py:25: cudaHostRegister, 712)"),
        (
            [{**FAILED, "count": 1200}, FAILED],
            "1,201 calls of CUDA returned an error (train.py:25: cudaHostRegister, 712 and 1 more line)",
        ),
        ([{**FAILED, "error": 704}], None),
        ([], None),
    ]:
        failed = [place("failed_call", 25 + number, **call) for number, call in enumerate(calls)]
        rows = [program(failed_calls=len(calls)), site(33), *failed]
        assert lines("error", rows=rows) == ([] if line is None else [f"--fail-on error: {line}"])
        assert lines("idle=50%", rows=rows) == []


def test_a_trace_that_did_not_notice_errors_does_not_pass() -> None:
    assert lines("error", rows=[program()])[0].startswith("--fail-on error: failed calls were not noticed: ")
    assert lines("idle=50%", rows=[program()]) == []


def test_a_program_without_kernels_does_not_pass_a_limit_of_idle_compute() -> None:
    rows = [program(kernels=0), {key: value for key, value in site(33).items() if key != "idle_seconds"}]
    assert lines("idle=50%", rows=rows) == [
        "--fail-on idle: the program ran no kernel, so that nothing can be said of idle compute; held can"
    ]
    assert lines("held=50%", rows=rows) == []


def test_pageable_lines_that_may_be_missing_do_not_pass() -> None:
    cut, others = program(sites_left_out=7), [site(33), site(50, "pinned")]
    assert [line for line in lines("pageable=2GiB", rows=[cut, *others[:1]]) if "more lines than are kept" in line]
    assert lines("pageable=2GiB", rows=[cut, *others]) == []  # with pinned ones kept, no pageable one is missing
