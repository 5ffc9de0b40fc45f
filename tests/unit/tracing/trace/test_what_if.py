"""What pinning lines saved, in words and tables."""

from __future__ import annotations

from typing import Any

import pytest

from pinscope.experiments.registry import checked_rows
from pinscope.records.run import Reading
from pinscope.tracing.sites import seen_in
from pinscope.tracing.trace.what_if import what_if_command
from tests.data import synthetic_trace
from tests.data.readings import As
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
        "count": 100, "bytes": 1000 * MIB, "gather_seconds": 0.05, "wait_seconds": 0.1, "pin_seconds": 0.02,
        "pinned_bytes": 32 * MIB,
    }  # fmt: skip
    return place("redirected", 7, **{**given, **values})


def reading(*rows: dict[str, Any], lines: tuple[str, ...] = (LINE,)) -> Reading:
    return As("trace").read(synthetic_trace.run(what_if=lines, what_if_of="first"), checked_rows("trace", rows))


def pinned(**values: Any) -> dict[str, Any]:
    return site(7, "pinned", idle_seconds=0.1, call_seconds=0.001, copy_seconds=0.02, **values)


def test_the_saving_stands_beside_the_estimate_and_the_results() -> None:
    seen = reading(program(9.0), pinned(), redirected(), before())
    did = "saved 1.00 s (10.0 %), measured once (about 950 ms was estimated)"
    assert seen.verdict == f"Pinning train.py:7 {did}, with the same output."
    assert [(figure.name, figure.value) for figure in seen.headline[:3]] == [
        ("Saved by pinning (measured)", 1.0), ("Saved by pinning (estimated)", 0.95),
        ("As it is, from the lines' first copy to the end", 10.0),
    ]  # fmt: skip
    runs, lines = seen.tables[:2]
    assert [(name, float(first or 0), float(second or 0)) for name, first, second in runs.rows] == [
        ("From the lines' first copy to the end of the last copy or kernel", 10.0, 9.0),
        ("From the first copy or kernel to the last", 10.0, 9.0),
        ("The whole program", 13.0, 12.0),
        ("GPU compute idle for the lines' copies", 1.0, 0.1),
        ("CPU held by the lines", 1.0, pytest.approx(0.001 + 0.05 + 0.1 + 0.02)),
        ("The transfers", 0.9, 0.02),
    ]
    assert lines.rows == (("train.py:7", 100, 1000 * MIB, 0.05, 0.1, 32 * MIB, 0.02, ""),)
    assert "Still pageable" not in [table.title for table in seen.tables]


def test_of_a_loader_that_pinned_its_batches_no_work_is_listed_that_was_not_measured() -> None:
    seen = reading(program(9.0), pinned(), redirected(count=0, reason="it pinned its batches"), before())
    assert seen.tables[1].rows == (("train.py:7", "it pinned its batches"),)


def test_what_the_program_did_before_the_lines_is_not_compared() -> None:
    """A start that took 3 s longer by chance; from the lines' first copy on it took 1 s less."""
    seen = reading(program(12.0), pinned(first_seconds=5.0), redirected(), before(first_seconds=2.0))
    assert "saved 1.00 s (12.5 %)" in (seen.verdict or "")


@pytest.mark.parametrize(
    ("seconds", "words"), [(9.95, "saved nothing measurable of 10.0 s"), (10.5, "cost 500 ms (5.0 %)")]
)
def test_what_saved_nothing_is_said_so(seconds: float, words: str) -> None:
    verdict = reading(program(seconds), pinned(), redirected(), before()).verdict
    assert (verdict or "").startswith(f"Pinning train.py:7 {words}, measured once")


def test_a_different_output_is_warned_of() -> None:
    seen = reading(program(9.0), pinned(), redirected(), before(same_output=False, estimated_seconds=None))
    assert seen.verdict == "Pinning train.py:7 saved 1.00 s (10.0 %), measured once, with different output."
    assert seen.findings[0].rule == "what-if-output-differs"


def test_what_stays_pageable_is_named_with_its_reason() -> None:
    seen = reading(
        program(9.0), pinned(), site(7, bytes=50 * MIB, large_count=5), site(9, "device", "pageable"), site(12),
        redirected(reason="5 copies: a gradient is needed"), before(),
    )  # fmt: skip
    assert {row[0]: row[4] for row in seen.tables[2].rows} == {
        "train.py:7": "5 copies: a gradient is needed",
        "train.py:9": "copies to the host are not redirected",
    }


def test_a_line_none_of_whose_copies_could_be_redirected() -> None:
    seen = reading(
        program(10.0), site(7), redirected(count=0, bytes=0, pinned_bytes=0), before(), lines=(LINE, "/srv/a.py:1")
    )
    assert seen.verdict == "No copy of train.py:7 and 1 more line could be made from pinned memory."
    assert seen.tables[0].title == "Still pageable"
    assert "Tensor.to" in str(seen.tables[0].rows[0][4])


def test_a_second_run_that_failed_compares_nothing() -> None:
    seen = reading(program(1.0, exit_code=-9), pinned(), redirected(), before())
    assert seen.verdict == "With train.py:7 pinned the program was ended by signal 9."
    assert seen.headline[0].name == "Saved if pinned (about)"
    assert "As it is, and pinned" not in [table.title for table in seen.tables]


def test_a_plain_trace_and_one_that_goes_on_have_no_comparison() -> None:
    assert reading(before()).tables == ()
    assert reading(program(9.0), pinned(), before(), lines=()).headline[0].name == "Saved if pinned (about)"


@pytest.mark.parametrize(
    ("values", "is_proposed"),
    [({}, True), ({"pinned_source_count": 100}, False), ({"mapping": "file", "mapped_file": "/srv/weights.bin",
      "untouched_share": 1.0, "uncached_share": 1.0}, False)],
    ids=["pageable", "converted", "of a file"],
)  # fmt: skip
def test_pinning_is_proposed_only_where_it_may_help(values: dict[str, Any], is_proposed: bool) -> None:
    rows = [program(10.0), site(7, idle_seconds=2.0, **values)]
    traced = synthetic_trace.run(pageable_h2d=10.5e9)
    assert (what_if_command(traced, seen_in(traced, checked_rows("trace", rows))) is not None) == is_proposed


@pytest.mark.parametrize(("process", "line"), [(4, "7"), (5, None)])
def test_a_line_that_only_other_processes_of_the_program_run_is_not_proposed(process: int, line: str | None) -> None:
    """As under torchrun: a second run would redirect the launcher's copies, of which there are none."""
    processes = [row("process", process=number, active_seconds=10.0, copies=100, kernels=100) for number in (4, 5)]
    rows = [program(10.0), *processes, site(9, process=5, idle_seconds=2.0), site(7, process=process)]
    traced = synthetic_trace.run()
    command = what_if_command(traced, seen_in(traced, checked_rows("trace", rows)))
    assert command == (line and f"pinscope trace --what-if pin:/srv/train.py:{line} train.py")
