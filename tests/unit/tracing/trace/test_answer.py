"""What stands below a trace's verdict: where the time went, lines with what to change, pinned memory, sizes."""

from __future__ import annotations

from typing import Any

import pytest

from pinscope.experiments.registry import read_run
from pinscope.records.run import Table
from pinscope.report.facts import answer_tables, table_texts
from pinscope.tracing.trace.answer import BEFORE, LINES, PEAK, SIZES, TIME
from tests.data.synthetic_trace import MIB, place, program, row, run, site

GPU = row("device", device=0, kernels=400, busy_seconds=5.0)
WAIT = place(
    "synchronisation", 9, call="cuStreamSynchronize", count=400, call_seconds=0.1, idle_seconds=2.0, first_seconds=0.0
)
PINS = place("allocation", 7, call="cudaHostAlloc", count=96, bytes=96 * MIB, call_seconds=1.5, left_count=0,
             left_bytes=0)  # fmt: skip


def answer(*rows: dict[str, Any], **values: Any) -> dict[str, Table]:
    return {table.title: table for table in answer_tables(read_run(run(), [program(**values), *rows]))}


def column(table: Table, name: str) -> dict[Any, Any]:
    """First cell of each row → its cell of that column."""
    place = table.columns.index(name)
    return {cells[0]: cells[place] for cells in table.rows}


def test_the_time_of_one_gpu_is_taken_apart_whole() -> None:
    took = column(answer(GPU, site(33), WAIT)[TIME], "took")
    assert took == {
        "Duration": 10.0, "GPU busy": 5.0, "GPU idle: copies": 1.0, "GPU idle: after waits": 2.0,
        "GPU idle: other": pytest.approx(2.0), "CPU held by copies": 1.0,
    }  # fmt: skip
    whole = column(answer({**GPU, "busy_seconds": 7.0}, site(33), WAIT)[TIME], "took")
    assert "GPU idle: other" not in whole


@pytest.mark.parametrize("several", [{"device": [0, 1]}, {"process": [4, 5], "rank": [0, 1]}])
def test_idle_time_of_several_gpus_or_processes_is_no_part_of_the_program_s_time(several: dict[str, list[int]]) -> None:
    """They stand idle beside each other: together for longer than the program runs."""
    rows = [
        {**each, **{name: values[number] for name, values in several.items()}}
        for number in (0, 1)
        for each in (site(33, "pinned", idle_seconds=8.0), GPU)
    ]
    took = column(answer(*rows)[TIME], "took")
    assert not any("idle" in name for name in took)
    assert took["GPU 0 of rank 0 busy" if "process" in several else "GPU 1 busy"] == 5.0


def test_waits_of_earlier_versions_which_counted_copies_too_are_no_part_of_the_time() -> None:
    older = {name: value for name, value in WAIT.items() if name != "first_seconds"}
    assert list(column(answer(GPU, site(33), older)[TIME], "took")) == ["Duration", "GPU busy", "CPU held by copies"]


def test_nothing_is_said_of_the_time_of_a_program_that_used_no_gpu() -> None:
    assert answer(copies=0, kernels=0) == {}


def test_lines_stand_in_the_order_of_what_a_change_is_known_to_save() -> None:
    table = answer(GPU, site(33), site(50, "pinned", idle_seconds=0.4), WAIT, PINS)[LINES]
    assert list(column(table, "to do").items()) == [
        ("train.py:7", "pin once, use it again"),
        ("train.py:33", "make the data in pinned memory"),
        ("train.py:9", "launch the next kernel sooner"),
        ("train.py:50", "copy while the GPU computes"),
    ]
    of_graph = answer(GPU, site(50, "pinned", idle_seconds=0.4, call="cuGraphLaunch"))[LINES]
    assert column(of_graph, "to do") == {"train.py:50": "copy beside its kernels, where the graph is made"}
    assert column(table, "saves")["train.py:33"] == pytest.approx(1.0 - 1000 * MIB / 50e9)
    assert column(table, "saves")["train.py:9"] is None


def test_a_line_that_copies_and_pins_and_waits_is_one_line() -> None:
    pins, wait = {**PINS, "line": 33, "count": 1}, {**WAIT, "line": 33, "count": 1}
    (line,) = answer(GPU, site(33), pins, wait)[LINES].rows
    cells = dict(zip(answer(GPU, site(33), pins, wait)[LINES].columns, line, strict=True))
    assert cells["costs"] == pytest.approx(1.0 + 1.5 + 2.0)
    assert (cells["CUDA calls"], cells["transfers"], cells["GPU idle"]) == (2.5, 0.9, 3.0)
    assert cells["does"] == "1 wait + CUDA pins 96 MiB"


def test_a_line_that_costs_little_is_told_to_change_nothing() -> None:
    table = answer(GPU, site(33, "pinned", idle_seconds=0.01), site(26, large_count=0, median_bytes=64.0))[LINES]
    words = {cells[0]: (cells[table.columns.index("saves")], cells[table.columns.index("to do")])
             for cells in table_texts(table)}  # fmt: skip
    assert words == {"train.py:33": ("–", "–"), "train.py:26": ("–", "–")}


def test_the_most_pinned_memory_names_the_lines_that_held_it() -> None:
    held, gone = {**PINS, "at_peak_bytes": 3 * MIB}, {**PINS, "line": 8, "at_peak_bytes": 0}
    table = answer(GPU, held, {**held, "line": 12, "at_peak_bytes": MIB}, gone, peak_bytes=4 * MIB, peak_at_seconds=1.5)
    assert column(table[PEAK], "of all") == {"train.py:7": 0.75, "train.py:12": 0.25}
    assert table[PEAK].note.startswith("4 MiB 1.50 s after the program's start")
    assert PEAK not in answer(GPU, PINS)  # an earlier version did not record it


def test_pinned_memory_from_before_the_trace_stands_beside_that_of_lines() -> None:
    held = {**PINS, "at_peak_bytes": 3 * MIB}
    table = answer(GPU, held, peak_bytes=3 * MIB, peak_at_seconds=1.5, before_bytes=9 * MIB)
    assert column(table[PEAK], "bytes") == {BEFORE: 9 * MIB, "train.py:7": 3 * MIB}
    assert column(answer(GPU, before_bytes=9 * MIB)[PEAK], "bytes") == {BEFORE: 9 * MIB}
    assert PEAK not in answer(GPU, before_bytes=0)


def test_copies_are_counted_by_size() -> None:
    sizes = [
        row("size", direction="h2d", most_bytes=16 * MIB, count=10, bytes=100 * MIB),
        row("size", direction="d2h", most_bytes=256, count=20, bytes=80),
        row("size", direction="h2d", most_bytes=256, count=10, bytes=40),
    ]
    table = answer(GPU, site(33), *sizes)[SIZES]
    assert column(table, "copies") == {256: 30, 16 * MIB: 10}
    assert column(table, "of the copies") == {256: 0.75, 16 * MIB: 0.25}
    assert column(table, "from GPU") == {256: 80, 16 * MIB: 0}


def test_a_line_that_moves_its_data_on_the_cpu_is_one_line_with_its_parts_and_told_what_to_do() -> None:
    """As of ``x.cpu().pin_memory()``: 0.8 s of work, for which no GPU computes."""
    work = place("host_call", 33, call="Tensor.pin_memory", count=100, bytes=1000 * MIB, call_seconds=0.9,
                 host_seconds=0.8, idle_seconds=0.8, first_seconds=0.0)  # fmt: skip
    tables = answer(GPU, site(33, "pinned", idle_seconds=0.05, copy_seconds=0.02), work)
    (line,) = tables[LINES].rows
    cells = dict(zip(tables[LINES].columns, line, strict=True))
    assert (cells["CPU work"], cells["CUDA calls"], cells["GPU idle"]) == (0.8, 1.0, pytest.approx(0.85))
    assert cells["costs"] == pytest.approx(0.85)
    assert (cells["to do"], cells["saves"]) == ("pin each once, where it is made", pytest.approx(0.8 * 0.99))
    assert column(tables[TIME], "took")["GPU idle: CPU work for copies"] == 0.8
    assert column(tables[TIME], "took")["CPU held by copies"] == pytest.approx(1.8)


def test_nothing_to_do_is_said_only_where_the_cpu_s_work_was_recorded_and_all_of_it_is_little() -> None:
    size = row("size", direction="h2d", most_bytes=16 * MIB, count=100, bytes=1000 * MIB)
    work = place("host_call", 33, call="Tensor.to", count=1, bytes=1, call_seconds=0.2, host_seconds=0.2,
                 idle_seconds=0.2, first_seconds=0.0)  # fmt: skip
    pinned = site(33, "pinned", idle_seconds=0.4)
    verdicts = [
        read_run(run(), [program(), GPU, *rows]).verdict or ""
        for rows in ([pinned, size], [pinned], [pinned, size, work])
    ]
    assert [verdict.partition(":")[0] for verdict in verdicts] == [
        "Nothing to do", "Little to gain", "Overlap the pinned copies of train.py",
    ]  # fmt: skip


def test_files_of_the_same_name_have_lines_of_their_own() -> None:
    table = answer(GPU, site(33), site(33, file="/opt/train.py"))[LINES]
    assert [cells[0] for cells in table.rows] == ["train.py:33", "train.py:33"]
    assert [cells[table.columns.index("costs")] for cells in table.rows] == [1.0, 1.0]
