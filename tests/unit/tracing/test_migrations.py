"""Which line pages of managed memory are given to: who touched them stands in no record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pinscope.records.trace_row import TraceRow
from pinscope.tracing.migrations import EVICTED, ON_REQUEST, migrated
from pinscope.tracing.spool import CPU_FAULT, GPU_FAULT, TO_GPU, TO_HOST
from tests.unit.tracing.test_line_totals import LARGE, LAUNCH, PREFETCH, Traced


@pytest.fixture
def traced(tmp_path: Path) -> Traced:
    """A launch of ``add.py``, whose kernel runs from 200 to 900, while the program stands in ``wait.py``."""
    traced = Traced(tmp_path)
    traced.stacks("add.py", "wait.py", "", "ask.py")
    traced.kernel(200, 900, call=traced.call(100, 110, LAUNCH, stack=1))
    traced.stood(110, 1000, 2)
    return traced


def by_file(traced: Traced) -> dict[Any, TraceRow]:
    return {row.file: row for row in migrated(traced.totals())}


def test_what_the_gpu_asks_for_or_has_no_room_for_belongs_to_the_line_that_launched_the_kernel(traced: Traced) -> None:
    traced.counter(GPU_FAULT, 300, 310, 1)
    traced.counter(TO_GPU, 320, 340)
    traced.counter(TO_HOST, 350, 360, cause=EVICTED)
    (row,) = by_file(traced).values()
    assert (row.file, row.to_gpu_bytes, row.to_host_bytes, row.gpu_fault_groups) == ("add.py", LARGE, LARGE, 1)
    assert (row.kernel_seconds, row.cpu_seconds) == (pytest.approx(700e-9), 0)


def test_what_the_cpu_asks_for_belongs_to_where_the_program_stood(traced: Traced) -> None:
    traced.counter(CPU_FAULT, 300, 0)
    traced.counter(TO_HOST, 310, 340)
    traced.counter(TO_HOST, 500, 600)
    (row,) = by_file(traced).values()
    assert (row.file, row.to_host_bytes, row.cpu_faults) == ("wait.py", 2 * LARGE, 1)
    assert (row.kernel_seconds, row.cpu_seconds) == (0, pytest.approx(300e-9))


def test_a_prefetch_belongs_to_the_newest_call_of_one(traced: Traced) -> None:
    for begun, stack in ((150, 2), (250, 4), (700, 2)):
        traced.call(begun, begun + 5, PREFETCH, stack=stack)
    traced.counter(TO_GPU, 300, 340, cause=ON_REQUEST)
    (row,) = by_file(traced).values()
    assert (row.file, row.prefetched_bytes, row.kernel_seconds) == ("ask.py", LARGE, 0)


def test_of_a_kernel_that_a_thread_of_a_library_launched_the_line_is_where_the_program_stood(traced: Traced) -> None:
    traced.kernel(1100, 1300, call=traced.call(1050, 1060, LAUNCH, stack=3))
    traced.stood(1000, 1400, 2)
    traced.counter(TO_GPU, 1200, 1210)
    assert list(by_file(traced)) == ["wait.py"]


def test_where_nothing_is_known_the_line_is_not(traced: Traced) -> None:
    traced.counter(TO_HOST, 5000, 5010)
    traced.counter(TO_GPU, 5000, 5010)
    (row,) = by_file(traced).values()
    assert (row.file, row.to_host_bytes, row.to_gpu_bytes) == ("", LARGE, LARGE)


def test_between_two_notes_the_line_is_the_one_before_until_the_first_call_of_the_next(traced: Traced) -> None:
    """From 1000 to 1100 the program goes on from ``wait.py`` to ``ask.py``, which makes a call at 1070."""
    traced.stood(1000, 1100, 4)
    traced.call(1070, 1075, stack=4)
    traced.counter(TO_HOST, 1030, 1040)
    traced.counter(TO_HOST, 1080, 1090, 7)
    assert {file: row.to_host_bytes for file, row in by_file(traced).items()} == {"wait.py": LARGE, "ask.py": 7}


def test_without_a_call_between_two_notes_the_line_is_the_one_behind(traced: Traced) -> None:
    traced.stood(1000, 1100, 4)
    traced.counter(TO_HOST, 1030, 1040)
    assert list(by_file(traced)) == ["ask.py"]
