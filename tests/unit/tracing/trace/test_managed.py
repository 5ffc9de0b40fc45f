"""What is said of managed memory: the line whose page faults take the time, and nothing where it was prefetched."""

from __future__ import annotations

from typing import Any

import pytest

from pinscope.tracing.trace.answer import LINES
from tests.data.synthetic_trace import MIB, place, program, row, site
from tests.unit.tracing.trace.test_answer import answer, column
from tests.unit.tracing.trace.test_reading import found, read

GIB = 2**30
FOLLOWED = program(managed_bytes=GIB, migrations_recorded=True)
COMPUTE = row("device", device=0, busy_seconds=5.0, kernels=100)


def line(number: int, **values: Any) -> dict[str, Any]:
    """10 GiB to the GPU by page faults, while kernels ran for 2 s."""
    given = {
        "to_gpu_bytes": 10 * GIB, "to_host_bytes": 0, "prefetched_bytes": 0, "gpu_fault_groups": 5000, "cpu_faults": 0,
        "count": 5000, "first_seconds": 0.0, "copy_seconds": 0.5, "kernel_seconds": 2.0, "cpu_seconds": 0.0,
    }  # fmt: skip
    return place("migration", number, **{**given, **values})


def test_the_line_whose_page_faults_take_the_time_is_named_with_what_copies_would_take() -> None:
    reading = read(FOLLOWED, COMPUTE, line(33))
    assert reading.verdict == (
        "Prefetch or copy the managed memory that train.py:33 touches: saves about 1.8 s of 10.0 s (18 %)."
    )
    (finding,) = reading.findings
    assert (finding.rule, finding.severity) == ("managed-memory", "note")
    evidence = {figure.name: figure.value for figure in finding.evidence}
    assert evidence["Copied from pinned memory (about)"] == pytest.approx(10 * GIB / 50e9)
    (table,) = (table for table in reading.tables if table.title == "Managed memory by line")
    assert [row[0] for row in table.rows] == ["train.py:33"]


def test_lines_of_the_cpu_and_of_the_gpu_come_in_the_order_of_their_time() -> None:
    cpu = line(31, to_gpu_bytes=0, to_host_bytes=10 * GIB, kernel_seconds=0.0, cpu_seconds=3.0, cpu_faults=9)
    reading = read(FOLLOWED, COMPUTE, line(33), cpu)
    assert [finding.title.partition(" moved")[0] for finding in found(reading, "managed-memory")] == [
        "train.py:31: page faults", "train.py:33: page faults",
    ]  # fmt: skip


def test_what_the_cpu_does_itself_at_a_line_is_not_promised_to_be_saved() -> None:
    cpu = line(31, to_gpu_bytes=0, to_host_bytes=10 * GIB, kernel_seconds=0.0, cpu_seconds=3.0, cpu_faults=9)
    saves = column(answer(COMPUTE, line(33), cpu)[LINES], "saves")
    assert saves == {"train.py:31": None, "train.py:33": pytest.approx(2.0 - 10 * GIB / 50e9)}


@pytest.mark.parametrize(
    "quiet",
    [
        line(33, prefetched_bytes=10 * GIB, gpu_fault_groups=0, kernel_seconds=0.0),
        line(33, kernel_seconds=0.05),  # half a per cent of the time
    ],
)
def test_of_what_was_prefetched_or_takes_little_the_table_alone_says_it(quiet: dict[str, Any]) -> None:
    reading = read(FOLLOWED, COMPUTE, quiet)
    assert not reading.findings
    assert "managed" not in (reading.verdict or "")
    assert "Managed memory by line" in {table.title for table in reading.tables}


def test_a_line_that_pinning_would_help_more_stays_first() -> None:
    copies = site(40, bytes=1000 * MIB, idle_seconds=4.0)
    reading = read(FOLLOWED, COMPUTE, line(33), copies)
    assert "train.py:40" in (reading.verdict or "")
    assert [finding.rule for finding in reading.findings] == ["pageable-copies", "managed-memory"]


def test_what_the_driver_does_not_count_is_said_not_to_be_followed() -> None:
    (finding,) = found(read(program(managed_bytes=GIB, migrations_recorded=False), COMPUTE), "not-recorded")
    assert "gives no counters" in finding.detail
    assert "gives no counters" not in found(read(program(managed_bytes=GIB), COMPUTE), "not-recorded")[0].detail
    assert not found(read(FOLLOWED, COMPUTE), "not-recorded")
