"""Rows of all processes, and which are kept where there are too many."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinscope.tracing import process_merge
from pinscope.tracing.process_merge import Ended, MergedTrace, Process
from tests.unit.tracing.test_line_totals import LARGE, Traced


def test_of_too_many_lines_pageable_ones_are_kept_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each GPU makes a row of its own."""
    monkeypatch.setattr(process_merge, "MOST_SITES", 2)
    traced = Traced(tmp_path)
    for device in range(3):
        traced.copy(
            traced.call(device * 100, device * 100 + 9), device * 100 + 1, device * 100 + 8, 4 * LARGE, device, source=2
        )
    traced.copy(traced.call(900, 990), 910, 980)
    rows = list(MergedTrace([Process(1, None, 1.0, traced.totals())], Ended(0, 1000, 0), None).rows())
    assert [(row.source, row.repeat) for row in rows if row.kind == "site"] == [("pageable", 0), ("pinned", 1)]
    assert rows[0].sites_left_out == 2


def test_a_program_during_which_the_clock_was_set_back_took_no_time(tmp_path: Path) -> None:
    (program,) = MergedTrace([Process(1, None, 1.0, Traced(tmp_path).totals())], Ended(2000, 1000, 0), None).rows()
    assert program.seconds == 0.0


def test_copies_are_counted_by_size_of_all_processes(tmp_path: Path) -> None:
    processes = []
    for number in (1, 2):
        (folder := tmp_path / str(number)).mkdir()
        traced = Traced(folder)
        for size in (100, LARGE, 256 * 1024, 256 * 1024 + 1):
            traced.copy(traced.call(0, 9), 1, 8, size)
        processes.append(Process(number, None, 1.0, traced.totals()))
    rows = [row for row in MergedTrace(processes, Ended(0, 1000, 0), None).rows() if row.kind == "size"]
    sizes = {row.most_bytes: (row.count, row.bytes) for row in rows}
    assert sizes[256] == (2, 200)
    assert sizes[256 * 1024] == (2, 2 * 256 * 1024)
    assert sizes[1024 * 1024] == (2 + 2, 2 * LARGE + 2 * (256 * 1024 + 1))
    assert sum(row.count or 0 for row in rows) == 8
    assert {row.direction for row in rows} == {"h2d"}


def test_the_most_pinned_memory_is_that_of_all_processes_together_and_of_each_line_what_was_there_then(
    tmp_path: Path,
) -> None:
    processes = []
    for number, events in enumerate(([(1, 4096, 100, 10), (2, 4096, 100, 30)], [(1, 4096, 50, 20), (1, 8192, 70, 40)])):
        (folder := tmp_path / str(number)).mkdir()
        processes.append(Process(number, None, 1.0, Traced(folder, events).totals()))
    program, *rows = MergedTrace(processes, Ended(5, 1000, 0), None).rows()
    assert (program.peak_bytes, program.peak_at_seconds) == (150, pytest.approx(15e-9))
    assert [row.at_peak_bytes for row in rows if row.kind == "allocation"] == [50, 100]
