"""What pinning lines saved, in words and tables."""

from __future__ import annotations

from typing import Any

import pytest

from pinscope.experiments.registry import checked_rows
from pinscope.experiments.trace.reading import read_trace
from pinscope.records.finding import Reading
from tests.data import synthetic_trace
from tests.data.synthetic_trace import MIB, place, program, row, site

LINE = "/srv/train.py:7"


def before(**values: Any) -> dict[str, Any]:
    given = {
        "seconds": 13.0, "active_seconds": 10.0, "copies": 100, "kernels": 100, "count": 100, "bytes": 1000 * MIB,
        "call_seconds": 1.0, "copy_seconds": 0.9, "idle_seconds": 1.0, "estimated_seconds": 0.95, "same_output": True,
    }  # fmt: skip
    return row("before", **{**given, **values})


def redirected(**values: Any) -> dict[str, Any]:
    given = {
        "count": 100, "bytes": 1000 * MIB, "gather_seconds": 0.2, "wait_seconds": 0.1, "pin_seconds": 0.02,
        "pinned_bytes": 32 * MIB,
    }  # fmt: skip
    return place("redirected", 7, **{**given, **values})


def reading(*rows: dict[str, Any], lines: tuple[str, ...] = (LINE,)) -> Reading:
    return read_trace(synthetic_trace.run(what_if=lines, what_if_of="first"), checked_rows("trace", rows))


def pinned(**values: Any) -> dict[str, Any]:
    return site(7, "pinned", idle_seconds=0.1, call_seconds=0.001, copy_seconds=0.02, **values)


def test_the_saving_stands_beside_the_estimate_and_the_results() -> None:
    seen = reading(program(9.0), pinned(), redirected(), before())
    assert seen.verdict == (
        "Pinning train.py:7 saved 1.00 s of 10.0 s; the estimate was 950 ms. The output was the same."
    )
    assert [(each.name, each.value) for each in seen.headline[:3]] == [
        ("Saved by pinning (measured)", 1.0), ("Saved by pinning (estimated)", 0.95),
        ("As it is, from the first copy or kernel to the last", 10.0),
    ]  # fmt: skip
    runs, lines = seen.tables[:2]
    assert [(name, float(first or 0), float(second or 0)) for name, first, second in runs.rows] == [
        ("From the first copy or kernel to the last", 10.0, 9.0),
        ("The whole program", 13.0, 12.0),
        ("GPU compute idle for the lines' copies", 1.0, 0.1),
        ("CPU held by their calls", 1.0, 0.001),
        ("Their transfers", 0.9, 0.02),
    ]
    assert lines.rows == (("train.py:7", 100, 1000 * MIB, 0.2, 0.1, 32 * MIB, 0.02, None),)
    assert [table.title for table in seen.tables].count("Still pageable") == 0


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (9.95, "Pinning train.py:7 changed less than 1 %: 10.0 s before, 9.95 s now; the estimate was 950 ms."),
        (10.5, "Pinning train.py:7 took 500 ms more than the 10.0 s without; the estimate was 950 ms."),
    ],
)
def test_what_saved_nothing_is_said_so(seconds: float, words: str) -> None:
    verdict = reading(program(seconds), pinned(), redirected(), before()).verdict
    assert verdict == f"{words} The output was the same."


def test_a_different_output_is_warned_of() -> None:
    seen = reading(program(9.0), pinned(), redirected(), before(same_output=False, estimated_seconds=None))
    assert seen.verdict == "Pinning train.py:7 saved 1.00 s of 10.0 s. The output differed."
    assert seen.findings[0].rule == "what-if-output-differs"


def test_what_stays_pageable_is_named_with_its_reason() -> None:
    seen = reading(
        program(9.0), pinned(), site(7, bytes=50 * MIB, large_count=5), site(9, "device", "pageable"), site(12),
        redirected(reason="5 copies: a gradient is needed"), before(),
    )  # fmt: skip
    assert seen.verdict is not None
    assert seen.verdict.endswith("50 MiB of its copies stayed pageable.")
    assert {row[0]: row[4] for row in seen.tables[2].rows} == {
        "train.py:7": "5 copies: a gradient is needed",
        "train.py:9": "copies to the host are not redirected",
    }


def test_a_line_none_of_whose_copies_could_be_redirected() -> None:
    seen = reading(
        program(10.0), site(7), redirected(count=0, bytes=0, pinned_bytes=0), before(), lines=(LINE, "/srv/a.py:1")
    )
    assert seen.verdict == "No copy of train.py:7 and 1 more could be made from pinned memory."
    assert [table.title for table in seen.tables[:2]] == ["As it is, and pinned", "Still pageable"]
    assert "Tensor.to" in str(seen.tables[1].rows[0][4])


def test_a_second_run_that_failed_compares_nothing() -> None:
    seen = reading(program(1.0, exit_code=-9), pinned(), redirected(), before())
    assert seen.verdict == "With train.py:7 pinned the program was ended by signal 9."
    assert seen.headline[0].name == "Saved if pinned (about)"
    assert "As it is, and pinned" not in [table.title for table in seen.tables]


def test_a_plain_trace_and_one_that_goes_on_have_no_comparison() -> None:
    assert reading(before()).tables == ()
    assert reading(program(9.0), pinned(), before(), lines=()).headline[0].name == "Saved if pinned (about)"
