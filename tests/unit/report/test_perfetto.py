"""Traced programs, and timelines of overlap, in the Chrome trace event format."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pinscope.analysis.read_rows import Attached
from pinscope.errors import BadInput
from pinscope.report import perfetto
from pinscope.report.facts import Document, open_document
from pinscope.report.perfetto import perfetto_pieces
from pinscope.store.recordings import recorded_runs
from pinscope.store.store import Store
from pinscope.tracing.stretch import extent, within
from tests.data import synthetic
from tests.data.synthetic_trace import MIB, attached, program, run, site

Event = dict[str, Any]
SPANS = {"X": {"dur", "cat"}, "M": {"args"}, "C": {"args"}, "s": {"id", "cat"}, "f": {"id", "cat", "bp"}, "i": {"s"}}
"""Phase → keys that it needs beside those of all events."""


def document(events: Attached) -> Document:
    return open_document(run(), [program(), site(33)], attached=events)


def events(*documents: Document) -> list[Event]:
    written: list[Event] = json.loads(b"".join(perfetto_pieces(documents)))["traceEvents"]
    follows_the_format(written)
    return written


def follows_the_format(written: list[Event]) -> None:
    """Keys and their types; spans of a track nest; each flow begins and ends once, in a span."""
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in written:
        assert SPANS[event["ph"]] <= event.keys()
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        assert isinstance(event.get("tid", 0), int)
        assert event["ph"] == "M" or isinstance(event["ts"], float | int)
        if event["ph"] == "X":
            assert event["dur"] >= 0
            begun, took = round(event["ts"] * 1e3), round(event["dur"] * 1e3)  # nanoseconds, as Perfetto counts
            tracks.setdefault((event["pid"], event["tid"]), []).append((begun, begun + took))
    for spans in tracks.values():
        around: list[int] = []
        for begun, ended in sorted(spans, key=lambda span: (span[0], -span[1])):
            while around and around[-1] <= begun + 1:  # overlap keeps no whole nanoseconds
                around.pop()
            assert not around or ended <= around[-1]
            around.append(ended)
    named = {(event["pid"], event["tid"]) for event in written if event["name"] == "thread_name"}
    assert named == tracks.keys()
    for phase in "sf":
        flows = {event["id"]: event for event in written if event["ph"] == phase}
        assert len(flows) == sum(event["ph"] == phase for event in written)
        for flow in flows.values():
            at = round(flow["ts"] * 1e3)
            assert any(begun <= at <= ended for begun, ended in tracks[flow["pid"], flow["tid"]])
    assert sum(event["ph"] == "s" for event in written) == sum(event["ph"] == "f" for event in written)


def spans(written: list[Event], kind: str) -> list[Event]:
    return [event for event in written if event.get("cat") == kind and event["ph"] == "X"]


def test_a_call_its_copy_and_a_kernel_stand_on_tracks_of_their_own_with_an_arrow_between() -> None:
    written = events(document(attached(
        calls=[{"at_ns": 5000, "took_ns": 3000, "thread": 77}],
        copies=[{"at_ns": 6000, "took_ns": 1500, "call_at_ns": 5000, "call_took_ns": 3000}],
        kernels=[{"at_ns": 9000, "took_ns": 2500}],
    )))  # fmt: skip
    (call,), (copy,), (kernel,) = (spans(written, kind) for kind in ("call", "copy", "kernel"))
    assert (call["name"], call["ts"], call["dur"]) == ("cudaMemcpyAsync", 5.0, 3.0)
    place = {"line": "train.py:33", "source": "x.cuda()"}
    assert call["args"] == copy["args"] == {**place, "bytes": MIB, "memory": "pageable → device"}
    assert (copy["name"], copy["ts"], copy["dur"]) == ("copy h2d", 6.0, 1.5)
    assert (kernel["pid"], kernel["tid"]) == (copy["pid"], copy["tid"]) != (call["pid"], call["tid"])
    titles = {event["args"]["name"] for event in written if event["name"] in {"process_name", "thread_name"}}
    assert titles == {"train.py", "GPU 0", "thread 77", "stream 7"}
    (begin,), (arrive,) = ([event for event in written if event["ph"] == phase] for phase in "sf")
    assert (begin["ts"], begin["tid"], arrive["ts"], arrive["pid"]) == (5.0, call["tid"], 6.0, copy["pid"])


def test_spans_of_a_stream_that_overlap_stand_beside_each_other() -> None:
    written = events(document(attached(kernels=[{"at_ns": 10 * n, "took_ns": 25} for n in range(5)])))
    titles = [event["args"]["name"] for event in written if event["name"] == "thread_name"]
    assert titles == ["stream 7", "stream 7 (2)", "stream 7 (3)"]
    within = spans(events(document(attached(kernels=[{"took_ns": 100}, {"at_ns": 20, "took_ns": 10}]))), "kernel")
    assert [kernel["tid"] for kernel in within] == [1, 2]  # no kernel is a part of another


def test_a_call_within_a_call_stands_on_its_track() -> None:
    calls = [{"at_ns": 0, "took_ns": 100}, {"at_ns": 0, "took_ns": 60}, {"at_ns": 50, "took_ns": 20, "thread": 78}]
    assert [call["tid"] for call in spans(events(document(attached(calls=calls))), "call")] == [1, 1, 2]


def test_a_counter_shows_the_pinned_memory() -> None:
    changes = [{"at_ns": 1}, {"at_ns": 2, "change_bytes": -MIB}]
    written = [event for event in events(document(attached(copies=[{}], pinned=changes))) if event["ph"] == "C"]
    assert [(event["name"], event["ts"] * 1e3, event["args"]["bytes"]) for event in written] == [
        ("pinned memory", 1, MIB), ("pinned memory", 2, 0),
    ]  # fmt: skip


def test_a_copy_whose_end_or_call_was_not_recorded_is_there() -> None:
    written = events(document(attached(copies=[{"took_ns": -1}], calls=[{"at_ns": 9, "call": "cudaHostAlloc"}])))
    (copy,) = spans(written, "copy")
    assert (copy["dur"], copy["args"]["end"]) == (0, "not recorded")
    assert not [event for event in written if event["ph"] in "sf"]


def test_of_calls_that_begin_at_once_the_arrow_leads_from_the_one_that_took_as_long() -> None:
    calls = [{"took_ns": 500, "thread": 1}, {"took_ns": 900, "thread": 2}, {"at_ns": 5, "took_ns": 500, "thread": 3}]
    taken = [(0, 900), (0, 500), (5, 500), (5, 900), (9, 500), (0, 1000)]
    copies = [{"at_ns": 10 * n, "call_at_ns": at, "call_took_ns": took} for n, (at, took) in enumerate(taken)]
    written = events(document(attached(calls=calls, copies=copies)))
    assert [event["tid"] for event in written if event["ph"] == "s"] == [2, 1, 3]
    assert [call["args"]["bytes"] for call in spans(written, "call")] == [MIB] * 3


def test_of_many_events_the_first_ones_are_written_and_a_mark_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perfetto, "TRACE_EVENTS", 6)
    copies, kernels = ([{"at_ns": 10 * n + shift, "took_ns": 2} for n in range(9)] for shift in (0, 4))
    written = events(document(attached(copies=copies, kernels=kernels)))
    assert len(spans(written, "copy")) == len(spans(written, "kernel")) == 3
    (mark,) = (event for event in written if event["ph"] == "i")
    assert mark["ts"] * 1e3 == 30
    assert "first 6 calls" in mark["name"]
    whole = attached(copies=copies, kernels=kernels)
    extent_of_it = extent(whole)
    assert extent_of_it is not None
    for begin, count in ((20, 4), (200, 0)):  # a stretch of it is written whole, though it be empty
        part = events(document(within(whole, extent_of_it, begin, begin + 15)))
        assert sum(event["ph"] == "X" for event in part) == count
        assert not any(event["ph"] == "i" for event in part)


@pytest.mark.parametrize("processes", [{}, {"process": 4711}])
def test_a_stretch_of_a_copy_whose_call_was_over_before_has_no_arrow(processes: dict[str, int]) -> None:
    """A copy from pinned memory: the call returns long before it ends. Another process calls meanwhile."""
    calls = [
        {"took_ns": 10, **processes}, {"at_ns": 900, **processes}, *({"at_ns": 500, "process": 4712} for _ in processes)
    ]  # fmt: skip
    copies = [{"at_ns": 20, "call_at_ns": 0, "call_took_ns": 10, **processes}]
    whole = attached(calls=calls, copies=copies)
    extent_of_it = extent(whole)
    assert extent_of_it is not None
    part = events(document(within(whole, extent_of_it, 400, 600)))
    assert len(spans(part, "copy")) == 1
    assert not [event for event in part if event["ph"] in "sf"]


def test_several_processes_of_a_program_keep_calls_streams_and_pinned_memory_apart() -> None:
    ids = (4711, 4712)
    written = events(document(attached(
        calls=[{"process": number} for number in ids],
        copies=[{"process": number, "call_at_ns": 0, "call_took_ns": 1000} for number in ids],
        pinned=[{"process": 4712}],
    )))  # fmt: skip
    names = {event["args"]["name"]: event["pid"] for event in written if event["name"] == "process_name"}
    assert list(names) == [
        "train.py, process 4711", "process 4711, GPU 0", "train.py, process 4712", "process 4712, GPU 0",
    ]  # fmt: skip
    begun = [event["pid"] for event in written if event["ph"] == "s"]
    assert begun == [names["train.py, process 4711"], names["train.py, process 4712"]]
    assert [event["pid"] for event in written if event["name"] == "pinned memory"] == [begun[1]]


def test_a_process_has_its_rank_as_its_name() -> None:
    both = attached(kernels=[{"process": 4711}, {"process": 4712}])
    rows = [program(), site(33, process=4711, rank=0), site(33, process=4712, rank=1)]
    written = events(open_document(run(), rows, attached=both))
    assert [event["args"]["name"] for event in written if event["name"] == "process_name"] == [
        "train.py, rank 0", "rank 0, GPU 0", "train.py, rank 1", "rank 1, GPU 0",
    ]  # fmt: skip


def test_several_runs_keep_processes_and_arrows_of_their_own() -> None:
    trace_of_a_copy = document(attached(calls=[{}], copies=[{"call_at_ns": 0, "call_took_ns": 1000}]))
    written = events(trace_of_a_copy, trace_of_a_copy, synthetic.document("overlap"))
    names = [event["pid"] for event in written if event["name"] == "process_name"]
    assert len(names) == len(set(names)) == 14
    assert len({event["id"] for event in written if event["ph"] == "s"}) == 2


def test_the_recorded_trace_follows_the_format_with_every_event() -> None:
    (trace,) = (run for run in recorded_runs() if run.experiment == "trace")
    with Store() as store:
        written = events(open_document(trace, store.observations(trace.id), attached=store.attached(trace)))
    counts = {table.name: table.rows for table in trace.attachments}
    assert len(spans(written, "kernel")) == counts["kernels"]
    assert len(spans(written, "copy")) == counts["copies"]
    assert len(spans(written, "call")) == counts["calls"]


def test_a_trace_without_events_is_refused() -> None:
    with pytest.raises(BadInput, match="carries no calls, copies and kernels"):
        events(document(attached(copies=[])))


@pytest.fixture(scope="module")
def overlap() -> Document:
    return synthetic.document("overlap")


def test_every_span_is_a_complete_event_in_microseconds(overlap: Document) -> None:
    spans = [row for row in overlap.rows if row["kind"] == "span"]

    complete = [event for event in events(overlap) if event["ph"] == "X"]

    assert sorted((event["ts"], event["dur"], event["cat"], event["args"]["chunk"]) for event in complete) == sorted(
        (row["start_seconds"] * 1e6, (row["end_seconds"] - row["start_seconds"]) * 1e6, row["lane"], row["chunk"])
        for row in spans
    )


def test_each_combination_is_a_process_with_named_lanes_whose_spans_do_not_overlap(overlap: Document) -> None:
    written = events(overlap)
    names = {event["pid"]: event["args"]["name"] for event in written if event["name"] == "process_name"}
    assert len(names) == len(set(names.values())) == 10  # five recipes, two directions
    assert "h2d, balanced: full recipe (GPU (CUDA))" in names.values()
    lanes = {(event["pid"], event["tid"]): event["args"]["name"] for event in written if event["name"] == "thread_name"}
    assert set(lanes.values()) == {"copies", "kernels"}
    ends: dict[tuple[int, int], float] = {}
    for event in written:
        if event["ph"] == "X":
            lane = (event["pid"], event["tid"])
            assert lanes[lane] == {"copy": "copies", "compute": "kernels"}[event["cat"]]
            assert event["ts"] >= ends.get(lane, 0.0) - 1e-6
            ends[lane] = event["ts"] + event["dur"]
