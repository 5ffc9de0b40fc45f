"""Timelines in the Chrome trace event format."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pinscope.errors import BadInput
from pinscope.report.facts import Document
from pinscope.report.perfetto import perfetto_pieces
from tests.data import synthetic

Event = dict[str, Any]


def events(*documents: Document) -> list[Event]:
    return list(json.loads(b"".join(perfetto_pieces(documents)))["traceEvents"])


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


def test_a_run_without_timeline_is_refused() -> None:
    with pytest.raises(BadInput, match="has no timeline"):
        events(synthetic.document("bandwidth"))
