"""What is said of the memory that copies use: of a mapped file, that page faults and the disk take the time."""

from __future__ import annotations

from typing import Any

import pytest

from pinscope.records.run import Finding, Reading
from tests.data.synthetic_trace import MIB, program, site
from tests.unit.tracing.trace.test_reading import found, read

RATES = {"pinned_h2d": 55e9, "pageable_h2d": 10.5e9}
SIZE = 2 << 30
PIECES = {"count": 32, "large_count": 32, "median_bytes": 64.0 * MIB, "largest_bytes": 64 * MIB, "bytes": SIZE}
FILE = {"mapping": "file", "mapped_file": "/srv/weights.bin", "untouched_share": 1.0, "uncached_share": 1.0}
STAGED = SIZE / 10.5e9


def of_memory(idle: float = 1.4, **memory: Any) -> tuple[Reading, Finding]:
    reading = read(program(1.45), site(33, idle_seconds=idle, **PIECES, **memory), **RATES)
    (finding,) = found(reading, "pageable-copies")
    return reading, finding


def saved(finding: Finding) -> Any:
    return {figure.name: figure.value for figure in finding.evidence}["Saved if pinned (about)"]


def test_of_a_mapped_file_page_faults_and_the_disk_are_named_and_not_promised() -> None:
    reading, finding = of_memory(**FILE)
    took = "at train.py:33 page faults and the disk take about 1.2 s"
    assert reading.verdict == f"Read weights.bin into pinned memory: saves about 170 ms; {took}."
    assert saved(finding) == pytest.approx(STAGED - SIZE / 55e9)
    assert "readinto" in (finding.code or "")
    assert "page faults take" in of_memory(**{**FILE, "uncached_share": 0.0})[1].title
    assert "maybe the disk" in of_memory(**{**FILE, "uncached_share": None})[1].title


def test_also_faults_that_take_less_than_staging_are_not_promised() -> None:
    reading, finding = of_memory(0.25, **FILE)
    assert saved(finding) == pytest.approx(STAGED - SIZE / 55e9)
    assert (reading.verdict or "").startswith("Pin what train.py:33 copies")  # it saves more than the faults take
    own = of_memory(0.25, mapping="anonymous", untouched_share=0.0)[1]
    assert saved(own) == pytest.approx(0.25 - SIZE / 55e9)


def test_of_a_mapped_file_whose_pages_were_all_touched_pinning_is_promised_as_of_other_memory() -> None:
    _, finding = of_memory(0.35, **{**FILE, "untouched_share": 0.0, "uncached_share": 0.0})
    assert saved(finding) == pytest.approx(0.35 - SIZE / 55e9)
    assert "fault" not in finding.title


def test_what_staging_does_not_explain_is_page_faults_only_where_pages_were_new() -> None:
    assert "had not been touched" in of_memory(mapping="anonymous", untouched_share=1.0)[1].detail
    assert "page faults" not in str(of_memory(mapping="anonymous", untouched_share=0.0)[1])


def test_without_a_rate_of_staging_nothing_is_promised_of_a_mapped_file() -> None:
    reading = read(program(1.45), site(33, idle_seconds=1.4, **PIECES, **FILE), pinned_h2d=55e9)
    (finding,) = found(reading, "pageable-copies")
    assert saved(finding) is None


def test_the_table_names_the_memory() -> None:
    for memory, words in [
        (FILE, "file weights.bin, not in memory"),
        ({**FILE, "uncached_share": 0.0}, "file weights.bin, pages new to the program"),
        ({"mapping": "anonymous", "untouched_share": 1.0}, "new pages"),
        ({"mapping": "anonymous", "untouched_share": 0.1, "huge_share": 1.0}, "touched before, huge pages"),
        ({"mapping": "shared", "untouched_share": 0.0}, "shared memory, touched before"),
    ]:
        reading = read(program(), site(33, **memory), site(34), pinned_h2d=55e9)
        (table,) = (table for table in reading.tables if table.title == "Copies by line")
        column = table.columns.index("pageable memory")
        assert {row[column] for row in table.rows} == {words, None}


def test_a_trace_that_nobody_looked_at_has_no_such_column() -> None:
    assert "pageable memory" not in str(read(program(), site(33)).tables)


def test_a_line_s_finding_names_its_memory_where_that_is_not_the_program_s_own_in_use_before() -> None:
    for memory, said in [
        ({"mapping": "anonymous", "untouched_share": 1.0}, True),
        ({"mapping": "shared", "untouched_share": 0.0}, True),
        ({"mapping": "anonymous", "untouched_share": 0.0}, False), ({}, False),
    ]:  # fmt: skip
        (finding,) = found(read(program(), site(33, "device", "pageable", **memory)), "pageable-copies")
        assert ("memory of the host" in finding.detail) == said
