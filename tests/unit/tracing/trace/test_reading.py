"""What a trace is read as: the line that costs most, what pinning it would save, and what is left alone."""

from __future__ import annotations

from typing import Any

import pytest

from pinscope.analysis.texts import MOST_CHARACTERS, MOST_WORDS
from pinscope.experiments.registry import read_run
from pinscope.records.run import Finding, Reading, Table
from pinscope.report.facts import table_texts
from tests.data.synthetic_trace import MIB, place, program, row, run, site

SAVED = 1.0 - 1000 * MIB / 50e9
"""Of a site that has stood for a second."""


def read(*rows: dict[str, Any], **params: Any) -> Reading:
    reading = read_run(run(**params), rows)
    verdict = reading.verdict or ""
    assert len(verdict) <= MOST_CHARACTERS
    assert len(verdict.split()) <= MOST_WORDS, verdict
    return reading


def titled(reading: Reading, title: str) -> Table:
    return next(table for table in reading.tables if table.title == title)


def found(reading: Reading, rule: str) -> list[Finding]:
    return [finding for finding in reading.findings if finding.rule == rule]


def test_a_pageable_line_is_named_with_what_it_costs_and_what_pinning_saves() -> None:
    reading = read(program(), site(33))
    assert reading.verdict == ("Pin what train.py:33 copies, where it is made: saves about 980 ms of 10.0 s (9.8 %).")
    assert reading.headline[0].value == pytest.approx(SAVED)
    (finding,) = found(reading, "pageable-copies")
    assert finding.severity == "note"  # 10.0 s instead of 9.0 s
    assert "non_blocking=True" in (finding.code or "")


def test_the_verdict_says_where_the_data_must_be_pinned_for_what_it_promises() -> None:
    back = read(program(), site(33, "device", "pageable")).verdict or ""
    assert back.startswith("Pin what train.py:33 copies into: saves about 980 ms")


def test_of_processes_that_run_beside_each_other_the_program_saves_what_one_saves_at_most() -> None:
    processes = [row("process", process=4 + rank, active_seconds=10.0, copies=1, kernels=1) for rank in range(8)]
    sites = [site(33, process=4 + rank, rank=rank, idle_seconds=2.0 + rank / 10) for rank in range(8)]
    headline = {figure.name: figure.value for figure in read(program(), *processes, *sites).headline}
    assert headline["Saved if pinned (about)"] == pytest.approx(1.7 + SAVED)
    assert headline["Saved if also issued early (of the copies, at most)"] == pytest.approx(2.7)


def test_what_pinning_saves_is_less_than_the_time_though_several_threads_hold_the_cpu_at_once() -> None:
    """Four threads that copy beside each other, and no kernels."""
    held = {key: value for key, value in site(33, call_seconds=8.0).items() if key != "idle_seconds"}
    reading = read(program(2.0, kernels=0), held)
    assert (reading.verdict or "").endswith(" saves about 2 s of 2.00 s (99 %).")
    (finding,) = found(reading, "pageable-copies")
    assert finding.severity == "warning"
    assert reading.headline[0].value == pytest.approx(1.0 + SAVED)


def test_what_the_program_did_before_a_loop_is_not_in_its_share() -> None:
    """A start of 6 s: without it the copies take a quarter of the time."""
    reading = read(program(), site(33, first_seconds=6.0))
    assert reading.verdict == "Pin what train.py:33 copies, where it is made: saves about 980 ms of its loop's 4.00 s."
    (finding,) = found(reading, "pageable-copies")
    assert finding.title.endswith("about 979 ms less, 24.5 % of the 4.00 s from its first copy on")
    assert finding.severity == "warning"


def test_a_line_of_a_process_has_its_share_of_that_process_s_time() -> None:
    ranks = [
        row("process", process=4 + rank, rank=rank, active_seconds=8.0 + rank, copies=1, kernels=1) for rank in (0, 1)
    ]
    sites = [site(33, process=4 + rank, rank=rank, first_seconds=4.0, idle_seconds=1.0 + rank) for rank in (0, 1)]
    assert "saves about 2 s of its loop's 5.00 s" in (read(program(), *ranks, *sites).verdict or "")


def test_waits_and_pins_have_their_share_from_their_first_on() -> None:
    wait = place("synchronisation", 9, call="cuStreamSynchronize", count=400, call_seconds=0.1, idle_seconds=0.05,
                 first_seconds=9.0)  # fmt: skip
    pins = place("allocation", 7, call="cuMemHostAlloc", count=96, bytes=96 * MIB, call_seconds=0.2, left_count=0,
                 left_bytes=0, first_seconds=9.5)  # fmt: skip
    reading = read(program(), wait, pins)
    assert "5.0 % of the 1.00 s from its first wait on" in found(reading, "waits-for-the-gpu")[0].detail
    assert found(reading, "pinned-memory-in-a-loop")[0].title == (
        "train.py:7 pins memory 96 times: 200 ms in cuMemHostAlloc, 40.0 % of the 500 ms from its first call on"
    )


@pytest.mark.parametrize(("first", "words"), [(9.0, "without"), (None, "with")])
def test_idle_time_after_waits_says_whether_it_holds_that_of_copies(first: float | None, words: str) -> None:
    """Earlier versions counted it for both, and noted no first moment of a wait."""
    wait = place("synchronisation", 9, call="cuStreamSynchronize", count=400, call_seconds=0.1, idle_seconds=0.5,
                 first_seconds=first)  # fmt: skip
    reading = read(program(), site(33), wait)
    table = next(each for each in reading.tables if each.title == "Waiting for the GPU")
    assert f"the next wait was over, {words} the idle time of copies above" in (table.note or "")
    assert ("counts twice" in (found(reading, "waits-for-the-gpu")[0].detail or "")) == (first is None)


def test_the_bandwidth_of_small_copies_is_not_said() -> None:
    """Their bytes travel in the command: CUPTI sees a rate that no link has."""
    weights = site(26, count=4, large_count=1, median_bytes=18_500.0)
    table = titled(read(program(), site(33), weights), "Copies by line")
    rates = {cells[0]: cells[table.columns.index("bandwidth")] for cells in table.rows}
    assert rates == {"train.py:33": pytest.approx(1000 * MIB / 0.9), "train.py:26": None}


def test_where_pinning_saves_nothing_a_table_says_why_in_place_of_a_figure() -> None:
    small = site(26, large_count=0, bytes=MIB, median_bytes=1024.0)
    on_gpu = site(9, "device", "device", direction="d2d", bytes=1)
    reading = read(program(), site(33), site(40, "pinned", bytes=2 * MIB), small, on_gpu)
    table = titled(reading, "Copies by line")
    place = table.columns.index("saved if pinned")
    assert [cells[place] for cells in table_texts(table)] == ["979 ms", "is pinned", "small copies", "–"]
    assert [cells[place] for cells in table.rows][1:] == [None] * 3


COMPUTE = row("device", device=0, kernels=100, busy_seconds=4.0)


def test_pinned_copies_are_not_accused_and_the_parts_of_the_time_are_said_without_calling_any_of_them_good() -> None:
    """pin_memory() at each use copies on the CPU, where CUDA sees nothing, and the copy to the GPU is perfect."""
    reading = read(program(), COMPUTE, site(33, "pinned", idle_seconds=0.4))
    assert reading.verdict == (
        "Little to gain: copies and waits take 4.0 % of 10.0 s; all 100 large copies use pinned memory."
    )
    assert not reading.findings


def test_a_program_that_pins_its_batches_is_told_so_though_its_weights_are_pageable() -> None:
    weights = site(5, bytes=2 * MIB, count=3, large_count=3, idle_seconds=0.0004)
    reading = read(program(), COMPUTE, site(33, "pinned", idle_seconds=0.02), weights)
    assert reading.verdict == "Little to gain: copies and waits take 0.2 % of 10.0 s."
    assert not reading.findings


def test_many_small_copies_that_hold_the_cpu_are_named() -> None:
    small = site(33, count=200_000, large_count=0, median_bytes=4096.0, largest_bytes=4096, call_seconds=0.9)
    (finding,) = found(read(program(), small), "many-small-copies")
    assert finding.title == "train.py:33 makes 200,000 copies of 4 KiB: they hold the CPU for 900 ms"


def test_what_gathering_small_copies_would_take_is_said_where_it_was_measured_for_pieces_of_their_size() -> None:
    rates = {"gathered_bytes": [4096, 65536], "gathered_h2d": [10e9, 1e9], "gathered_d2h": [1e9, 1e9],
             "gathered_from": "recording on NVIDIA H200"}  # fmt: skip
    small = site(33, count=200_000, large_count=0, median_bytes=6000.0, bytes=10**9, call_seconds=0.9)
    reading = read(program(), small, **rates)
    (finding,) = found(reading, "many-small-copies")
    assert finding.title.endswith("they hold the CPU for 900 ms, gathered they would take about 100 ms")
    assert any(quantity.value == "recording on NVIDIA H200" for quantity in finding.evidence)
    assert reading.verdict is not None
    assert reading.verdict == (
        "Gather the 200,000 small copies of train.py:33: they blocked the CPU for 900 ms (9.0 %)."
    )
    large = read(program(), {**small, "median_bytes": 60_000.0}, **rates)
    (slow,) = found(large, "many-small-copies")
    assert "gathered" not in slow.title
    assert slow.advice.startswith("Gathering them with one thread would take as long.")
    moved = "Move the 200,000 small copies of train.py:33 another way, not gathered: they blocked the CPU"
    assert (large.verdict or "").startswith(moved)


def test_a_foreign_run_may_hold_anything_in_place_of_rates() -> None:
    odd: dict[str, Any] = {"gathered_bytes": "x", "gathered_h2d": [None], "pinned_from": ["x"], "gathered_from": 3}
    small = site(33, count=200_000, large_count=0, median_bytes=4096.0, call_seconds=0.9)
    for sizes in ("x", [4096], [0, "x"]):
        reading = read(program(), small, site(34), **{**odd, "gathered_bytes": sizes})
        assert "gathered" not in found(reading, "many-small-copies")[0].title


def test_where_no_copy_is_worth_pinning_the_verdict_is_what_costs_most_beside_copies() -> None:
    wait = place("synchronisation", 9, call="cudaStreamSynchronize", count=400, call_seconds=0.1, idle_seconds=2.0)
    pins = place("allocation", 7, call="cudaHostAlloc", count=96, bytes=96 * MIB, call_seconds=1.5, left_count=0,
                 left_bytes=0)  # fmt: skip
    late = "Launch the next kernel sooner after the waits of train.py:9: the GPU idled 2.00 s (20.0 %)."
    once = "Pin once at train.py:7, not 96 times: it took 1.50 s (15.0 %)."
    often = "Wait less often at train.py:9: the GPU idled 2.00 s (20.0 %)."
    back = site(34, "device", "pinned", call="cuMemcpyDtoHAsync")
    for rows, verdict in [
        ([wait], late), ([wait, pins], once), ([{**wait, "call_seconds": 1.9}], often),
        ([{**wait, "call_seconds": 1.9, "after_async_count": 390}, pins, back], once),
    ]:  # fmt: skip
        assert read(program(), site(33, "pinned"), *rows).verdict == verdict


def test_a_line_that_copies_little_but_costs_much_stands_first() -> None:
    pinned = site(33, "pinned", bytes=100_000 * MIB)
    assert (read(program(), pinned, site(34)).verdict or "").startswith("Pin what train.py:34 copies")
    assert (read(program(100.0), pinned, site(34)).verdict or "").startswith("Little to gain: ")


def test_pinned_copies_for_which_the_gpu_stands_are_to_overlap() -> None:
    verdict = "Overlap the pinned copies of train.py:33: hides at most 1.00 s (10.0 %)."
    assert read(program(), COMPUTE, site(33, "pinned")).verdict == verdict


def test_copies_of_a_gpu_that_hardly_computes_have_nothing_to_hide_behind() -> None:
    brief = {**COMPUTE, "busy_seconds": 0.01}
    assert read(program(), brief, site(33, "pinned")).verdict.startswith("No line alone costs much")


def test_where_many_lines_cost_little_each_nothing_is_called_little() -> None:
    small = [site(line, idle_seconds=0.09, large_count=0, median_bytes=64.0) for line in range(1, 9)]
    assert read(program(), *small).verdict == "No line alone costs much: copies and waits take 7.2 % of 10.0 s."


def test_one_long_idle_time_after_a_wait_is_not_what_waiting_costs() -> None:
    """A first compilation: it would come without the wait, too."""
    wait = place("synchronisation", 9, call="cuStreamSynchronize", count=400, call_seconds=0.1, idle_seconds=2.0)
    assert found(read(program(), wait), "waits-for-the-gpu")
    assert not found(read(program(), {**wait, "longest_idle_seconds": 1.95}), "waits-for-the-gpu")


def test_pinned_memory_has_what_was_asked_for_held_and_there_at_once() -> None:
    pins = place("allocation", 7, call="cudaHostAlloc", count=96, bytes=96 * 5000, held_bytes=96 * 8192,
                 peak_bytes=5000, call_seconds=1.5, left_count=0, left_bytes=0)  # fmt: skip
    table = titled(read(program(), pins), "Pinned memory allocated")
    cells = dict(zip(table.columns, table.rows[0], strict=True))
    assert (cells["bytes asked for"], cells["bytes held"], cells["most at once"]) == (480_000, 786_432, 5000)
    assert cells["source"] == "y.item()"


def test_nobody_is_told_to_wait_less_who_copies_to_the_host_asynchronously_or_uses_managed_memory() -> None:
    """What is read before the wait is wrong."""
    wait = place("synchronisation", 9, call="cuCtxSynchronize", count=400, call_seconds=1.9, idle_seconds=2.0,
                 after_async_count=390)  # fmt: skip
    back = site(33, "device", "pinned", call="cuMemcpyDtoHAsync")
    assert [each.rule for each in read(program(), COMPUTE, back, wait).findings] == ["reads-not-watched"]
    managed = read(program(managed_bytes=MIB), COMPUTE, site(33, "pinned"), wait)
    assert [finding.rule for finding in managed.findings] == ["not-recorded"]
    assert (managed.verdict or "").startswith(
        "Managed memory was not followed. Overlap the pinned copies of train.py:33: "
    )
    waiting = {**wait, "line": 33}  # as of .item(), which waits for its own copy
    assert found(read(program(), COMPUTE, back, waiting), "waits-for-the-gpu")
    assert found(read(program(), COMPUTE, site(33, "pinned"), wait), "waits-for-the-gpu")


def test_a_line_of_which_pinning_saves_nothing_is_not_told_to_pin() -> None:
    """The transfers take all of the time for which compute stands idle."""
    slow = read(program(), site(33), pinned_h2d=1e9)
    assert (slow.verdict or "").startswith("Pinning what train.py:33 copies would save nothing: ")
    assert not found(slow, "pageable-copies")
    assert found(read(program(), site(33)), "pageable-copies")


def test_without_a_known_rate_nothing_is_estimated() -> None:
    reading = read(program(), site(33), pinned_h2d=None)
    assert reading.verdict is not None
    assert "save" not in reading.verdict
    assert (reading.headline[0].value, reading.headline[0].reason) == (
        None,
        "no run of bandwidth says the rate of pinned copies",
    )


def test_a_program_without_kernels_is_judged_by_the_cpu() -> None:
    rows = [program(kernels=0), {key: value for key, value in site(33).items() if key != "idle_seconds"}]
    reading = read(*rows)
    assert reading.verdict is not None
    assert reading.verdict.startswith("Pin what train.py:33 copies, where it is made: ")
    assert {figure.name: figure.reason for figure in reading.headline if figure.value is None} == dict.fromkeys(
        ("GPU compute busy, first to last copy or kernel", "GPU compute idle for large pageable copies"),
        "the program ran no kernel",
    )


@pytest.mark.parametrize(
    ("held", "title", "advice"),
    [
        (0.1, "At train.py:9 the CPU waits 400 times for the GPU, which idles 2.00 s in all after these waits (fewer "
         "waits save at most 100 ms)",
         "Fewer waits save at most 100 ms"),
        (1.9, "After each of 400 waits of train.py:9 the GPU idled: 2.00 s in all",
         "without these waits the program would take at most 1.90 s less"),
    ],
)  # fmt: skip
def test_waits_after_which_the_gpu_has_nothing_to_do(held: float, title: str, advice: str) -> None:
    wait = place("synchronisation", 9, call="cudaStreamSynchronize", count=400, call_seconds=held, idle_seconds=2.0)
    rare = place("synchronisation", 12, call="cudaDeviceSynchronize", count=2, call_seconds=0.1, idle_seconds=2.0)
    (finding,) = found(read(program(), site(33, "pinned"), wait, rare), "waits-for-the-gpu")
    assert finding.title == title
    assert advice in (finding.advice or "")


def test_what_is_missing_of_a_trace_is_said() -> None:
    reading = read(program(sites_left_out=1_500, lost_bytes=4096), site(33))
    assert reading.findings[-1].rule == "records-lost"
    assert "1,500 " in titled(reading, "Copies by line").note


NOTHING = "The program copied nothing to or from a GPU."
NO_COPY = "Not all of the program was recorded. No copy was recorded."


def test_a_program_copied_nothing_only_where_nothing_that_could_copy_went_unseen() -> None:
    for values, verdict in [
        ({}, NOTHING),
        ({"unrecorded": 0, "managed_bytes": 0}, NOTHING),
        ({"recorded_seconds": 5.0}, f"{NOTHING[:-1]} in the 5.00 s that were recorded."),
        ({"unrecorded": 2}, "2 child processes used CUDA: trace each by itself. No copy was recorded."),
        ({"managed_bytes": 2**30}, "Managed memory was not followed. No copy was recorded."),
        ({"lost_bytes": 4096}, NO_COPY),
    ]:
        assert read(program(copies=0, kernels=0, **values)).verdict == verdict


def test_it_is_not_said_of_a_recording_that_ended_early_or_left_out_children() -> None:
    early = run().model_copy(update={"notes": ("The recording ended before the program did: OSError: no room",)})
    assert read_run(early, [program(copies=0, kernels=0)]).verdict == NO_COPY
    assert read(program(copies=0, kernels=0), children=False).verdict == NO_COPY


def test_what_was_not_recorded_is_said_first() -> None:
    reading = read(program(unrecorded=1), site(33))
    assert (reading.verdict or "").startswith("1 child process used CUDA: trace each by itself.")
    assert len(found(reading, "unrecorded-children")) == 1


def test_managed_memory_is_said_where_only_copies_show_it() -> None:
    (managed,) = found(read(program(), COMPUTE, site(33, "managed", large_count=0)), "not-recorded")
    assert managed.detail.startswith("The program uses managed memory: how its pages move")


def test_of_copies_that_wait_for_pages_pinning_promises_what_staging_takes() -> None:
    """2 GiB out of a mapped file that is not in memory: 1.4 s, of which staging takes 0.2 s."""
    rates = {"pinned_h2d": 55e9, "pageable_h2d": 10.5e9}
    size, slow = 2 << 30, {"count": 32, "large_count": 32, "median_bytes": 64.0 * MIB, "largest_bytes": 64 * MIB}
    reading = read(program(1.45), site(33, bytes=size, idle_seconds=1.4, **slow), **rates)
    assert (reading.verdict or "").endswith(" saves about 170 ms of 1.45 s (11 %).")
    (finding,) = found(reading, "pageable-copies")
    assert "may be page faults or reading a mapped file" in finding.detail
    staged = size / 10.5e9 - size / 55e9
    assert {figure.name: figure.value for figure in finding.evidence}["Saved if pinned (about)"] == pytest.approx(
        staged
    )
    in_memory = read(program(1.45), site(33, bytes=size, idle_seconds=0.31, **slow), **rates)
    assert "page faults" not in str(in_memory)
    assert in_memory.headline[0].value == pytest.approx(0.31 - size / 55e9)


def test_what_many_calls_take_is_no_page_fault() -> None:
    """Copies of 100 KiB: their calls take longer than their staging."""
    calls = site(33, count=4000, large_count=4000, bytes=400 * MIB, median_bytes=1e5, idle_seconds=0.2)
    assert "page faults" not in str(read(program(), calls, pageable_h2d=10e9))


def test_a_line_that_asks_for_an_asynchronous_copy_already_is_answered_that_pageable_memory_undoes_it() -> None:
    asking, plain = site(33, source_line='x = x.to("cuda", non_blocking=True)'), site(34, source_line="x = x.cuda()")
    first, second = found(read(program(), asking, plain), "pageable-copies")
    assert "non_blocking=True has hardly any effect" in (first.advice or "")
    assert "no effect" not in (second.advice or "")


@pytest.mark.parametrize(("code", "how"), [(1, "ended with exit code 1"), (-9, "was ended by signal 9")])
def test_a_program_that_did_not_end_well_is_said(code: int, how: str) -> None:
    *others, last = read(program(exit_code=code), site(33)).findings
    assert (last.rule, last.title) == ("program-failed", f"The program {how}")
    assert others == list(read(program(exit_code=0), site(33)).findings)
