"""A stretch of a trace's time: what is in it, one by one or as how much ran at once; and unions of intervals."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from pinscope.analysis.read_rows import Attached
from pinscope.charts.marks import Chart
from pinscope.errors import InvalidParameter
from pinscope.experiments.registry import draw_run
from pinscope.tracing import stretch
from pinscope.tracing.stretch import PIECES, Busy, Extent, Stretch, at_once, call_kind, extent, once, stretch_of, within
from pinscope.tracing.trace.charts import moment, timeline
from tests.data.synthetic_trace import attached, program, run, site

MS = 1_000_000


@pytest.fixture
def loop() -> Attached:
    """Ten steps of 10 ms: a pageable copy of 4 ms that holds the CPU for 5 ms, a kernel of 3 ms, a wait of 1 ms."""
    steps = [10 * MS * step for step in range(10)]
    return attached(
        calls=[
            call
            for at in steps
            for call in (
                {"at_ns": at, "took_ns": 5 * MS},
                {"at_ns": at + 9 * MS, "took_ns": MS, "call": "cudaStreamSynchronize"},
            )
        ],
        copies=[
            {"at_ns": at + MS, "took_ns": 4 * MS, "call_at_ns": at, "call_took_ns": 5 * MS, "idle_ns": at // 10 + 1}
            for at in steps
        ],
        kernels=[{"at_ns": at + 6 * MS, "took_ns": 3 * MS} for at in steps],
    )


def whole_of(attachments: Attached, rows: Sequence[dict[str, Any]] = ()) -> Extent:
    whole = extent(attachments, rows)
    assert whole is not None
    return whole


def titles(chart: Chart) -> list[str]:
    """Of its panels."""
    return [note.text for note in chart.figure.layout.annotations]


def part(stretched: Stretch, name: str, kind: str) -> float:
    """On average over the stretch."""
    return float(next(pieces.mean() for key, pieces in stretched.at_once.items() if key[:2] == (name, kind)))


def test_the_extent_reaches_from_the_first_event_to_the_last(loop: Attached) -> None:
    whole = whole_of(loop)
    assert (whole.begin_ns, whole.end_ns) == (0, 100 * MS)
    assert extent(attached(copies=[])) is None


def test_a_stretch_with_few_events_has_each_of_them(loop: Attached) -> None:
    whole = whole_of(loop)
    stretched = stretch_of(loop, whole, 20 * MS, 30 * MS)
    assert stretched.events == 4 + 1  # the wait before ends where it begins
    (copy,) = stretched.singles["copies", "pageable", 0, 0]
    assert (copy.begin_ns, copy.end_ns, copy.lane, copy.name) == (21 * MS, 25 * MS, "7", "h2d")
    assert part(stretched, "calls", "copy") == pytest.approx(0.5)
    assert part(stretched, "kernels", "compute") == pytest.approx(0.3)


def test_of_many_events_it_says_how_much_ran_at_once(loop: Attached, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stretch, "MOST_SINGLE", 10)
    whole = whole_of(loop)
    stretched = stretch_of(loop, whole, 0, 100 * MS)
    assert not stretched.singles
    assert stretched.events == 40
    assert part(stretched, "copies", "pageable") == pytest.approx(0.4)
    assert part(stretched, "calls", "wait") == pytest.approx(0.1)
    pieces = stretched.at_once["copies", "pageable", 0, 0]
    assert len(pieces) == PIECES
    assert pieces[: PIECES // 100].tolist() == pytest.approx([0.0] * 4)  # the first millisecond
    assert pieces[4:8].tolist() == pytest.approx([1.0] * 4)


def test_the_attachments_of_a_stretch_hold_its_events_and_the_pinned_memory_until_its_end(loop: Attached) -> None:
    pins = attached(pinned=[{"at_ns": 0}, {"at_ns": 25 * MS}, {"at_ns": 35 * MS}])
    both = Attached(
        {**loop.rows, **pins.rows}, lambda name, wanted: (pins if name == "pinned" else loop).read(name, wanted)
    )
    whole = whole_of(both)
    part = within(both, whole, 22 * MS, 30 * MS)
    counts = {name: sum(len(table) for table in part.tables(name)) for name in both.rows}
    assert counts == {"calls": 2, "copies": 1, "kernels": 1, "pinned": 2}


def test_only_parts_that_reach_into_the_stretch_are_read(loop: Attached) -> None:
    whole, read = whole_of(loop), list[str]()

    def counting(name: str, wanted: object) -> object:
        for number, table in enumerate(loop.read(name, wanted)):  # type: ignore[arg-type]
            read.append(f"{name} {number}")
            yield table

    stretch_of(Attached(loop.rows, counting), whole, 41 * MS, 44 * MS)  # type: ignore[arg-type]
    assert len(read) == 2  # of twenty parts of two rows: no kernel ran then


def test_spans_count_where_they_lie_and_several_at_once_add_up() -> None:
    begun, ended = np.asarray([-5, 0, 10]), np.asarray([5, 100, 20])
    assert at_once(begun, ended, np.linspace(0, 100, 11)).tolist() == [1.5, 2.0, *[1.0] * 8]
    nothing = np.empty(0, np.int64)
    assert at_once(nothing, nothing, np.linspace(0, 1, 3)).tolist() == [0.0, 0.0]


def test_a_call_is_of_the_kind_that_its_name_says() -> None:
    for call, kind in [
        ("cudaMemcpyAsync", "copy"), ("cuMemcpyHtoD", "copy"), ("cudaGraphLaunch", "copy"), ("cudaHostAlloc", "pin"),
        ("cudaHostRegister", "pin"), ("cuCtxSynchronize", "wait"),
    ]:  # fmt: skip
        assert call_kind(call) == kind


def test_the_timeline_has_a_panel_for_the_cpu_and_two_for_each_gpu(
    loop: Attached, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = whole_of(loop)
    stretched = stretch_of(loop, whole, 20 * MS, 30 * MS)
    assert moment(stretched, 1.5) == 21_500_000
    chart = timeline(stretched)
    assert titles(chart) == [
        "CPU, in calls of CUDA", "GPU 0, copies", "GPU 0, kernels",
    ]  # fmt: skip
    assert chart.figure.layout.xaxis3.title.text == "Time since 0.0200 s after the program's start (ms)"
    (copy,) = (bar for bar in chart.figure.data if bar.name == "pageable copies")
    assert (list(copy.base), list(copy.x)) == ([1.0], [4.0])
    assert copy.customdata[0] == "h2d, pageable, 1 MiB, stream 7: 4.00 ms from 0.021000 s on"
    monkeypatch.setattr(stretch, "MOST_SINGLE", 0)
    many = timeline(stretch_of(loop, whole, 0, 100 * MS))
    assert "how many ran at once, on average in each 250 µs" in many.caption
    assert "pageable copies, GPU 0 40.0 ms" in many.alt


def test_a_stretch_has_the_panels_of_the_whole_trace_also_where_nothing_ran(loop: Attached) -> None:
    whole = whole_of(loop)
    chart = timeline(stretch_of(loop, whole, 41 * MS, 44 * MS))
    assert titles(chart) == [
        "CPU, in calls of CUDA", "GPU 0, copies", "GPU 0, kernels: none",
    ]  # fmt: skip


def test_a_stretch_in_which_nothing_ran_says_so(loop: Attached) -> None:
    empty = timeline(stretch_of(loop, whole_of(loop), 52 * MS // 10, 58 * MS // 10))
    assert {title.rpartition(": ")[2] for title in titles(empty)} == {"none"}
    assert empty.caption == "No call, copy or kernel ran in these 600 µs."
    assert empty.figure.layout.yaxis.showticklabels is False
    assert {trace.showlegend for trace in empty.figure.data} == {False}


@pytest.mark.parametrize("at_ns", [0, 1, 5000])
def test_a_trace_of_one_event_without_an_end_has_a_timeline(at_ns: int) -> None:
    attachments = attached(kernels=[{"at_ns": at_ns, "took_ns": -1}])
    whole = whole_of(attachments)
    assert whole.end_ns == at_ns + 1
    (chart,) = draw_run(run(), [], attachments)
    assert chart.caption == "1 call, copy or kernel in 1.00 ns, one by one; a row is a thread or a stream."


def test_the_heart_of_a_stretch_is_where_most_of_what_ran_ran(loop: Attached) -> None:
    late = attached(kernels=[{"at_ns": 0, "took_ns": MS}, {"at_ns": 90 * MS, "took_ns": 10 * MS}])
    for attachments, heart in ((late, (90, 99)), (loop, (10, 90))):
        whole = whole_of(attachments)
        stretched = stretch_of(attachments, whole, whole.begin_ns, whole.end_ns)
        assert [moment / MS for moment in stretched.heart_ns] == pytest.approx(heart, abs=2)
    assert Stretch(10 * MS, 20 * MS).heart_ns == (10 * MS, 20 * MS)


def test_events_name_the_lines_that_made_them() -> None:
    events = attached(copies=[{}], calls=[{"call": "cuMemcpyHtoDAsync"}])
    whole = whole_of(events, [site(33)])
    chart = timeline(stretch_of(events, whole, whole.begin_ns, whole.end_ns))
    assert [bar.customdata[0].split(" from ")[0] for bar in chart.figure.data] == [
        "cuMemcpyHtoDAsync, train.py:33, thread 1: 1.00 µs",
        "h2d, pageable, 1 MiB, train.py:33, stream 7: 1.00 µs",
    ]


def test_rows_stand_in_the_order_of_their_numbers_and_those_left_out_are_said() -> None:
    streams = [{"at_ns": at, "stream": stream} for stream in (7, 13, *range(20, 26)) for at in range(2)]
    few = attached(kernels=streams)
    many = attached(kernels=[*streams, {"at_ns": 5, "stream": 1}])
    charts = []
    for attachments in (few, many):
        whole = whole_of(attachments)
        charts.append(timeline(stretch_of(attachments, whole, whole.begin_ns, whole.end_ns)))
        assert charts[-1].figure.layout.yaxis.categoryarray[-2:] == ("13", "7")  # from the bottom
    assert "not drawn" not in charts[0].caption
    assert charts[1].caption.endswith("Of more than 8 rows in a panel those with the fewest are not drawn.")


def test_several_processes_have_gpus_and_streams_of_their_own() -> None:
    two = attached(copies=[{"process": 4711}, {"process": 4712, "at_ns": 500}])
    whole = whole_of(two)
    chart = timeline(stretch_of(two, whole, whole.begin_ns, whole.end_ns))
    assert titles(chart) == ["GPU 0 of process 4711, copies", "GPU 0 of process 4712, copies"]
    assert list(chart.figure.data[0].y) == ["7 of process 4711"]


def test_processes_have_the_names_that_the_lines_have_and_an_id_where_two_have_one_rank() -> None:
    ranks = {4711: 0, 4712: 1, 4713: 1}
    attachments = attached(copies=[{"process": process} for process in ranks])
    rows = [program(), *(site(33, process=process, rank=rank) for process, rank in ranks.items())]
    timeline_of_all = draw_run(run(), rows, attachments)[-1]
    assert titles(timeline_of_all) == [
        "GPU 0 of rank 0, copies", "GPU 0 of rank 1, process 4712, copies", "GPU 0 of rank 1, process 4713, copies",
    ]  # fmt: skip
    assert list(timeline_of_all.figure.data[0].y) == ["7 of rank 0"]


def test_events_that_are_none_of_a_trace_are_refused_and_not_drawn() -> None:
    for row, complaint in [
        ({"at_ns": "x"}, "no column at_ns of whole numbers"),
        ({"at_ns": None}, "no column at_ns of whole numbers"),
        ({"at_ns": 2**62}, "at_ns is beyond 37 years"),
        ({"took_ns": 1.5}, "no column took_ns of whole numbers"),
        ({"direction": 3}, "no column direction of text"),
        ({"process": "x"}, "no column process of whole numbers"),
        ({"file": 3, "line": 1}, "no column file of text"),
        ({"file": "train.py"}, "no column line of whole numbers"),
    ]:
        with pytest.raises(InvalidParameter, match=f"^the attachment copies is not that of a trace: .*{complaint}"):
            extent(attached(copies=[row]))
        assert len(draw_run(run(), [program(), site(33)], attached(copies=[row]))) == 1


def test_more_gpus_than_there_can_be_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stretch, "DEVICES_READ", 1)
    with pytest.raises(InvalidParameter, match="more than 1 different values of device"):
        extent(attached(kernels=[{"device": 0}, {"device": 1}]))


def times(*values: int) -> np.ndarray:
    return np.asarray(values, np.int64)


def test_it_agrees_with_counting_every_moment() -> None:
    chance = random.Random(7)
    starts = [chance.randrange(500) for _ in range(60)]
    ends = [start + chance.randrange(1, 20) for start in starts]
    covered = np.zeros(600, bool)
    for start, end in zip(starts, ends, strict=True):
        covered[start:end] = True
    busy = Busy(np.asarray(starts), np.asarray(ends))
    assert busy.seconds == covered.sum() / 1e9
    begun = np.asarray([chance.randrange(590) for _ in range(200)], np.int64)
    ended = begun + np.asarray([chance.randrange(60) for _ in range(200)])
    expected = [covered[a:b].sum() for a, b in zip(begun, ended, strict=True)]
    assert busy.within(begun, ended).tolist() == expected


def test_after_a_moment_it_is_idle_until_the_next_begins() -> None:
    busy = Busy(times(10, 50), times(20, 60))
    assert busy.idle_after(times(0, 10, 15, 20, 45, 60, 99)).tolist() == [10, 0, 0, 30, 5, 0, 0]


def test_where_nothing_ran_nothing_is_covered() -> None:
    busy = Busy(times(), times())
    assert busy.seconds == 0
    assert busy.within(times(1), times(9)).tolist() == [0]
    assert busy.idle_after(times(1)).tolist() == [0]


def test_each_moment_of_overlapping_stretches_belongs_to_the_first() -> None:
    starts, ends = once(times(0, 5, 6, 20), times(10, 12, 8, 25))
    assert list(zip(starts.tolist(), ends.tolist(), strict=True)) == [(0, 10), (10, 12), (12, 12), (20, 25)]
