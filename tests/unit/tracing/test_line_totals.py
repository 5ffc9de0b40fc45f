"""What is added up from records and calls, of traces that are made up: idle compute that counts for a copy."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pinscope.tracing import process_merge
from pinscope.tracing.line_totals import LineTotals
from pinscope.tracing.managed import STANDING
from pinscope.tracing.mapped_file import CUT, ENTRY, READ_ENTRY
from pinscope.tracing.process_merge import Ended, MergedTrace, Process, attachments
from pinscope.tracing.spool import TYPES, RecordFiles, Spool

COPY, WAIT, LAUNCH, PREFETCH = 277, 126, 307, 716
LARGE, SMALL = 1 << 20, 64
PAGEABLE, DEVICE = 1, 3


class Traced:
    """A trace: the times of its calls, copies and kernels, and what it pinned and released."""

    def __init__(self, folder: Path, pinned: Sequence[tuple[int, ...]] = ()) -> None:
        self._folder = folder
        self._calls: list[tuple[int, ...]] = []
        events = ("memory_operation_type", "address", "bytes", "timestamp")
        self._tables: dict[str, list[dict[str, int]]] = {
            "copies": [],
            "kernels": [],
            "migrations": [],
            "allocations": [dict(zip(events, event, strict=True)) for event in pinned],
        }

    def call(self, start: int, end: int, function: int = COPY, number: int | None = None, stack: int = 0) -> int:
        number = number or len(self._calls) + 1
        self._calls.append((number, function, 1, stack, 0, start, end))
        return number

    def copy(
        self, call: int, start: int, end: int, size: int = LARGE, device: int = 0, *, source: int = PAGEABLE,
        target: int = DEVICE,
    ) -> None:  # fmt: skip
        self._tables["copies"].append({
            "correlation_id": call, "device_id": device, "copy_kind": 1 if target == DEVICE else 2, "src_kind": source,
            "dst_kind": target, "bytes": size, "start": start, "end": end,
        })  # fmt: skip

    def kernel(self, start: int, end: int, device: int = 0, *, call: int = 0) -> None:
        self._tables["kernels"].append({"correlation_id": call, "device_id": device, "start": start, "end": end})

    def counter(self, kind: int, start: int, end: int, value: int = LARGE, *, cause: int = 2) -> None:
        self._tables["migrations"].append(
            {"counter_kind": kind, "flags_": cause, "value": value, "start": start, "end": end}
        )

    def stood(self, since: int, until: int, stack: int) -> None:
        with (self._folder / "standing").open("ab") as file:
            file.write(STANDING.pack(since, until, stack))

    def read(self, copy: int, moment: int, stack: int) -> None:
        """Of copy 0: the program was told that the GPU is done."""
        (self._folder / "host_names").write_text('[1, ["item", ""]]\n')
        with (self._folder / "watched").open("ab") as file:
            file.write(READ_ENTRY.pack(copy, int(copy > 0), stack, moment))

    def stacks(self, *files: str) -> None:
        """Stacks 1, 2 …: the first line of each file; of an empty name no Python code."""
        lines = [[number, [[file, 1, "main"]] if file else []] for number, file in enumerate(files, 1)]
        (self._folder / "stacks").write_text("".join(f"{json.dumps(line)}\n" for line in lines))

    def totals(self) -> LineTotals:
        config: dict[str, Any] = {"kinds": {}, "layouts": {}}
        config["functions"] = {
            COPY: "cuMemcpyHtoDAsync_v2", WAIT: "cuStreamSynchronize", LAUNCH: "cuLaunchKernel",
            PREFETCH: "cuMemPrefetchAsync_v2",
        }  # fmt: skip
        (self._folder / "config.json").write_text(json.dumps(config))
        (self._folder / "calls.000000").write_bytes(b"".join(ENTRY.pack(*call) for call in self._calls))
        for name, rows in self._tables.items():
            table = np.zeros(len(rows), TYPES[name])
            for place, row in enumerate(rows):
                for field, value in row.items():
                    table[field][place] = value
            if rows:
                table.tofile(self._folder / name)
        return LineTotals(RecordFiles(Spool(self._folder), self._folder))


@pytest.fixture
def traced(tmp_path: Path) -> Traced:
    return Traced(tmp_path)


IDLE = {
    "until the CPU is held again": (
        [("copy", 100, 200, 110, 200), ("kernel", 0, 200), ("kernel", 230, 240), ("wait", 250, 260),
         ("kernel", 300, 310)], [0], [30 + 10]),
    "no more than compute was busy while the call held the CPU": (
        [("copy", 100, 200, 110, 200), ("kernel", 0, 115), ("kernel", 300, 310)], [85], [15]),
    "two threads: idle compute during both is the first one's, and the second one did not hide any": (
        [("copy", 100, 200, 110, 200), ("copy", 101, 205, 110, 205), ("kernel", 0, 50), ("kernel", 400, 410)],
        [100, 5], [0, 0]),
    "a moment of a small copy behind a large one, as of images and labels, counts once": (
        [("copy", 100, 200, 110, 200), ("copy", 205, 215, 206, 214, SMALL), ("kernel", 0, 200), ("kernel", 230, 240)],
        [0, 10], [20, 0]),
    "none without an end, or on a GPU without kernels": (
        [("copy", 100, 200, 110, 0), ("copy", 500, 600, 510, 600, LARGE, 1), ("kernel", 0, 700), ("kernel", 800, 900)],
        [0, 100], [0, 0]),
}  # fmt: skip


@pytest.mark.parametrize("rule", IDLE)
def test_idle_compute_counts_for_copies_and_behind_them(rule: str, traced: Traced) -> None:
    events, idle, launch = IDLE[rule]
    for kind, begun, over, *copied in events:
        if kind == "copy":
            traced.copy(traced.call(begun, over), *copied)
        elif kind == "kernel":
            traced.kernel(begun, over)
        else:
            traced.call(begun, over, WAIT)
    totals = traced.totals()
    assert totals.idle_of_copies.tolist() == idle
    assert totals.launch_idle_of_copies.tolist() == launch


def test_no_moment_behind_the_copies_of_one_call_counts_twice(traced: Traced) -> None:
    call = traced.call(100, 200)
    for begun in (110, 150):
        traced.copy(call, begun, begun + 40)
    traced.kernel(0, 200)
    traced.kernel(230, 240)
    assert int(traced.totals().launch_idle_of_copies.sum()) == 30


def test_compute_idle_for_a_copy_is_not_idle_after_the_wait_before_it(traced: Traced) -> None:
    """Compute stands from 100 to 300, 120 of it for the copy. None of what follows could have been issued during the
    copy's call: compute was not busy then."""
    traced.kernel(0, 100)
    traced.call(90, 100, WAIT)
    traced.copy(traced.call(140, 260), 150, 250)
    traced.kernel(300, 400)
    traced.call(390, 400, WAIT)
    totals = traced.totals()
    assert totals.idle_of_copies.tolist() == [120]
    (waits,) = totals.waited()
    assert waits.idle_seconds == pytest.approx((200 - 120) / 1e9)


def test_idle_compute_after_a_wait_is_its_own_until_the_next_wait_is_over(traced: Traced) -> None:
    """A line that waits, long work of the CPU, and then a copy that waits as well."""
    traced.kernel(0, 100)
    traced.call(90, 100, WAIT)
    traced.call(900, 910, WAIT)
    traced.kernel(1000, 1100)
    totals = traced.totals()
    assert [row.idle_seconds for row in totals.waited()] == [pytest.approx((810 + 90) / 1e9)]
    assert totals._idle_after(totals.calls).tolist() == [810, 90]


def test_what_follows_a_copy_is_not_idle_after_the_wait_before_it_either(traced: Traced) -> None:
    traced.kernel(0, 100)
    traced.call(40, 50, WAIT)
    traced.copy(traced.call(60, 150), 110, 140)  # compute was busy for 40 while the call held the CPU
    traced.kernel(200, 300)
    totals = traced.totals()
    assert (totals.idle_of_copies.tolist(), totals.launch_idle_of_copies.tolist()) == ([50], [40])
    traced.call(99, 100, WAIT)
    totals = traced.totals()
    (waits,) = totals.waited()
    assert waits.idle_seconds == pytest.approx((100 - 50 - 40) / 1e9)


def test_rows_say_when_the_first_of_them_began(traced: Traced) -> None:
    traced.kernel(1000, 2000)
    traced.copy(traced.call(3000, 4000), 3500, 4000)
    traced.call(5000, 5010, WAIT)
    traced.call(6000, 6010, WAIT)
    totals = traced.totals()
    assert [row.first_seconds for row in (*totals.sites(), *totals.waited())] == [2.5e-6, 4e-6]


def test_copies_of_calls_that_were_cut_off_accuse_no_line_unless_a_whole_call_made_them(traced: Traced) -> None:
    for call in (traced.call(0, 10, CUT), traced.call(20, 30), 3):
        traced.copy(call, 0, 10)
    traced.call(40, 50)
    traced.call(50, 50, CUT, number=3)
    assert traced.totals().copies["correlation_id"].tolist() == [2, 3]


def test_a_copy_that_cupti_could_not_time_began_with_its_call_and_without_one_is_no_event(traced: Traced) -> None:
    traced.kernel(1000, 2000)
    traced.copy(traced.call(3000, 4000), 3100, 3900)
    traced.copy(traced.call(5000, 6000), 0, 0)
    traced.copy(999, 0, 0)
    totals = traced.totals()
    assert totals.copies["start"].tolist() == [0, 3100, 5000]
    assert totals.idle_of_copies.tolist() == [0, 1000, 0]
    (site,) = totals.sites()
    assert (site.count, site.bytes, site.first_seconds) == (3, 3 * LARGE, 2.1e-6)
    tables = {
        name: [row for batch in batches for row in batch.to_pylist()]
        for name, _, batches in attachments(MergedTrace([Process(1, None, 1.0, totals)], Ended(1000, 9000, 0), None))
    }
    times = [[row[key] for key in ("at_ns", "took_ns", "call_at_ns", "idle_ns")] for row in tables["copies"]]
    assert times == [[2100, 800, 2000, 1000], [4000, -1, 4000, 0]]


def test_of_a_program_without_copies_and_kernels_a_wait_begins_at_0(traced: Traced) -> None:
    traced.call(5000, 5010, WAIT)
    assert [row.first_seconds for row in traced.totals().waited()] == [0.0]


@pytest.mark.parametrize("with_copy", [False, True])
def test_a_trace_without_calls_or_kernels(with_copy: bool, traced: Traced) -> None:
    if with_copy:
        traced.copy(7, 100, 200)
    totals = traced.totals()
    assert totals.launch_idle_of_copies.tolist() == [0] * with_copy
    assert [row.launch_idle_seconds for row in totals.sites()] == [None] * with_copy


@pytest.mark.parametrize("seed", range(12))
def test_idle_compute_agrees_with_counting_every_moment(seed: int, traced: Traced) -> None:
    """Of made-up traces: two threads copy and wait, one after the other or at once, and two GPUs compute."""
    some = random.Random(seed)
    held: dict[int, list[range]] = {0: [], 1: []}
    busy: dict[int, set[int]] = {0: set(), 1: set()}
    copies = []
    for thread in range(some.choice([1, 2])):
        now = 10 * thread
        for _ in range(10):
            begun = now + some.randint(0, 30)
            now = begun + some.randint(1, 60)
            if some.random() < 0.3:
                traced.call(begun, now, WAIT)
                continue
            start, device = begun + some.randint(0, 40), some.choice([0, 1])
            end = start + some.randint(1, 60)
            copies.append((start, end, traced.call(begun, now), some.choice([LARGE, SMALL]), device))
            held[device].append(range(begun, max(now, end)))
    for start, end, call, size, device in sorted(copies):
        traced.copy(call, start, end, size, device)
    for device, moments in busy.items():
        for start in sorted(some.sample(range(900), 12)):
            end = start + some.randint(1, 60)
            traced.kernel(start, end, device)
            moments.update(range(start, end))
    totals = traced.totals()
    for device, moments in busy.items():
        of_device = totals.copies["device_id"] == device
        during = set().union(*held[device]) - moments
        behind = set(range(max(moments))) - moments - during
        assert int(totals.idle_of_copies[of_device].sum()) == len(during)
        assert 0 <= int(totals.launch_idle_of_copies[of_device].sum()) <= len(behind)


# All processes of a program


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
