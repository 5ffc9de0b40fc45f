"""Rows of all processes, and which are kept where there are too many."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinscope.tracing import process_merge
from pinscope.tracing.line_totals import Ended
from pinscope.tracing.process_merge import MergedTrace, Process
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
    rows = list(MergedTrace([Process(1, None, 1.0, traced.totals(), 0)], Ended(0, 1000, 0), None).rows())
    assert [(row.source, row.repeat) for row in rows if row.kind == "site"] == [("pageable", 0), ("pinned", 1)]
    assert rows[0].sites_left_out == 2


def test_a_program_during_which_the_clock_was_set_back_took_no_time(tmp_path: Path) -> None:
    (program,) = MergedTrace([Process(1, None, 1.0, Traced(tmp_path).totals(), 0)], Ended(2000, 1000, 0), None).rows()
    assert program.seconds == 0.0
