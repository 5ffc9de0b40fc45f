"""Data that is used before it is copied, in words: what was watched, and what a second run with waits proved."""

from __future__ import annotations

from typing import Any

import pytest

from pinscope.experiments.registry import checked_rows
from pinscope.records.run import Reading
from pinscope.report.facts import answer_tables
from pinscope.tracing.trace import answer as tables
from tests.data import synthetic_trace
from tests.data.readings import As
from tests.data.synthetic_trace import place, program, row, site

LINES = ("/srv/train.py:7", "/srv/train.py:9")


def before(**values: Any) -> dict[str, Any]:
    given = {
        "seconds": 13.0, "active_seconds": 10.0, "kernels": 100, "count": 100, "bytes": 1000, "same_output": False,
        "same_twice": True, "arrays": 1,
    }  # fmt: skip
    return row("before", **{**given, **values})


def waited(line: int, **values: Any) -> dict[str, Any]:
    return place("waited", line, **{"count": 100, "bytes": 1000, "direction": "d2h", **values})


def difference(output: str = "stdout", line: int = 0, **values: Any) -> dict[str, Any]:
    return row("difference", **{"output": output, "count": 1, "file": "/srv/train.py", "line": line, **values})


def compared(*rows: dict[str, Any]) -> Reading:
    run = synthetic_trace.run(waits=LINES, what_if_of="first")
    return As("trace").read(run, checked_rows("trace", [program(), *rows]))


def rules(reading: Reading) -> list[tuple[str, str]]:
    return [(finding.rule, finding.severity) for finding in reading.findings]


def test_the_line_that_needs_its_wait_is_named() -> None:
    seen = compared(before(), waited(7, needed=False), waited(9, needed=True), difference("loss", 12))
    assert seen.verdict == "Wrong data: waits behind the copies of train.py:9 change 'loss' at train.py:12."
    assert rules(seen) == [("used-before-copied", "critical")]
    assert [line[:4] for line in seen.tables[0].rows] == [
        ("train.py:7", "d2h", 100, "same without"), ("train.py:9", "d2h", 100, "needs its wait"),
    ]  # fmt: skip


def test_where_no_line_alone_needs_its_wait_all_are_named() -> None:
    seen = compared(before(), waited(7, needed=False), waited(9, direction="h2d"), difference())
    assert seen.verdict == "Wrong data: waits behind the copies of train.py:7 and train.py:9 change stdout."
    assert [finding.title[-45:] for finding in seen.findings] == [
        "wait behind the copies of train.py:7 changes stdout"[-45:],
        "wait behind the copies of train.py:9 changes stdout"[-45:],
    ]


def test_output_that_is_never_the_same_proves_nothing() -> None:
    seen = compared(before(same_twice=False), waited(7), difference("numpy.save", 12))
    assert seen.verdict == ("Nothing is proven: two runs with waits give other output, in numpy.save at train.py:12.")
    assert rules(seen) == [("output-never-the-same", "warning")]


def test_the_same_output_is_no_proof_and_what_was_not_waited_for_is_said() -> None:
    seen = compared(before(same_output=True), waited(7), waited(9, count=0, reason="3 copies into a graph"))
    assert rules(seen) == [("no-early-use-shown", "note"), ("not-waited-for", "warning")]
    assert (seen.verdict or "").startswith("No early use was shown")


def early(**values: Any) -> dict[str, Any]:
    given = {"call": "item", "count": 20, "in_flight_count": 20, "copy_file": "/srv/train.py", "copy_line": 7}
    return place("early_read", 9, **{**given, **values})


BACK = site(7, "device", "pinned", call="cuMemcpyDtoHAsync", idle_seconds=1.0)


GPU = row("device", device=0, busy_seconds=5.0, kernels=100)


def read(*rows: dict[str, Any]) -> Reading:
    return As("trace").read(synthetic_trace.run(), checked_rows("trace", [program(), GPU, BACK, *rows]))


def test_an_early_read_comes_first_with_both_lines() -> None:
    seen = read(place("watched", 7, count=100), early())
    assert seen.verdict == ("Wrong data: train.py:9 reads what train.py:7 copies before the copy is done, 20 times.")
    assert rules(seen) == [("read-before-copied", "critical")]
    assert seen.findings[0].title.endswith("before the copy is done: 20 of 100 copies")
    (line,) = (row for table in answer_tables(seen) if table.title == tables.LINES for row in table.rows)
    assert "wait for it before its data is read" in line


def test_a_read_without_a_wait_of_copies_that_were_done_is_no_wrong_data() -> None:
    seen = read(place("watched", 7, count=100), early(in_flight_count=0))
    assert seen.verdict == "train.py:9 reads what train.py:7 copies, 20 times, and nothing waits for the copy before."
    assert rules(seen) == [("read-before-copied", "warning")]


@pytest.mark.parametrize(("watched", "rule"), [(90, []), (89, ["reads-not-watched"]), (0, ["reads-not-watched"])])
def test_copies_whose_reads_were_not_watched_are_suspected(watched: int, rule: list[str]) -> None:
    seen = read(*([place("watched", 7, count=watched)] if watched else []))
    assert [finding.rule for finding in seen.findings] == rule


def test_a_line_that_waits_itself_is_not_suspected() -> None:
    wait = place("synchronisation", 7, call="cuStreamSynchronize", count=100, call_seconds=0.1, idle_seconds=0.0)
    assert read(wait).findings == ()
