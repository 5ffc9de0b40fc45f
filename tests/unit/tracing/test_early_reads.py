"""Which reads of copied data came too early: from the times of copies, waits and reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinscope.tracing.early_reads import CLOCKS_APART_NS, early_reads
from tests.unit.tracing.test_line_totals import DEVICE, WAIT, Traced

PINNED, MS = 2, 1_000_000


@pytest.fixture
def traced(tmp_path: Path) -> Traced:
    """``copy.py`` copies from 1 to 5 ms, after its call."""
    traced = Traced(tmp_path)
    traced.stacks("copy.py", "read.py")
    traced.copy(traced.call(MS // 2, MS, stack=1), MS, 5 * MS, source=DEVICE, target=PINNED)
    return traced


def counts(traced: Traced) -> list[tuple[int | None, int | None]]:
    """Of each row, reads and those while the copy ran."""
    rows = list(early_reads(traced.totals()))
    assert all((row.file, row.copy_file, row.call) == ("read.py", "copy.py", "item") for row in rows)
    return [(row.count, row.in_flight_count) for row in rows]


@pytest.mark.parametrize(
    ("moment", "waited", "told", "expected"),
    [
        (2 * MS, None, None, [(1, 1)]),
        (6 * MS, None, None, [(1, 0)]),
        (6 * MS, 5 * MS, None, []),
        (6 * MS, None, 5 * MS, []),
        (2 * MS, 2 * MS - 1, None, [(1, 1)]),
        (5 * MS - CLOCKS_APART_NS, 4 * MS, None, []),
        (6 * MS, 7 * MS, None, [(1, 0)]),
        (6 * MS, MS // 2, None, [(1, 0)]),
    ],
    ids=[
        "while it runs", "by luck", "after a wait", "after a question", "after a wait for something else",
        "as it ends, by clocks that differ", "before the wait", "after a wait before the copy",
    ],
)  # fmt: skip
def test_a_read_is_early_while_its_copy_runs_or_where_nothing_waited_since(
    moment: int, waited: int | None, told: int | None, expected: list[tuple[int, int]], traced: Traced
) -> None:
    if waited is not None:
        traced.call(waited - 10, waited, WAIT)
    if told is not None:
        traced.read(0, told, 0)
    traced.read(1, moment, 2)
    assert counts(traced) == expected


def test_reads_of_one_copy_by_a_line_count_once_and_what_was_no_copy_to_the_host_not(traced: Traced) -> None:
    sent = traced.call(MS, MS + 1)
    traced.copy(sent, MS + 2, 5 * MS)
    for copy in (1, 1, sent, 99):
        traced.read(copy, 2 * MS, 2)
    assert counts(traced) == [(1, 1)]
