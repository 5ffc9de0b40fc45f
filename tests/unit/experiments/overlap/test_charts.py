"""What the charts of an overlap run say, read back from the figures."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go
import pytest

from pinscope.experiments.overlap.charts import TIMELINE_CHUNKS
from pinscope.units import format_seconds
from tests.data.readings import Made

Row = dict[str, Any]


drawn = Made("overlap").charts


def one_pass(**changes: Any) -> Row:
    fields = {
        "repeat": 0, "warmup": False, "kind": "pass", "direction": "h2d", "balance": "balanced", "memory": "pinned",
        "separate_stream": True, "depth": 2, "events": True, "bytes": 2**20, "chunks": 10, "device_seconds": 1.1,
        "wall_seconds": 1.1, "issue_seconds": 1e-3, "stall_seconds": 0.2, "copy_alone_seconds": 1.0,
        "pinned_copy_seconds": 1.0, "compute_alone_seconds": 1.0, "corrupted_chunks": 0, "lane": None, "chunk": None,
        "start_seconds": None, "end_seconds": None,
    }  # fmt: skip
    return fields | changes


def one_span(lane: str, chunk: int, start: float, end: float, **changes: Any) -> Row:
    return one_pass(kind="span", lane=lane, chunk=chunk, start_seconds=start, end_seconds=end, **changes)


def bars(figure: go.Figure, name: str) -> Any:
    return next(item for item in figure.data if item.name == name)


def written(figure: go.Figure) -> list[str]:
    return [note.text for note in figure.layout.annotations]


@pytest.mark.parametrize(("device_seconds", "hidden"), [(7.0, "none"), (2.0, "none"), (1.9, "10.0 %"), (0.9, "all")])
def test_noise_hides_no_more_than_all_and_no_less_than_nothing(device_seconds: float, hidden: str) -> None:
    figure = drawn([one_pass(device_seconds=device_seconds)])["overlap-passes"].figure

    assert f"{format_seconds(device_seconds)}, {hidden} hidden" in written(figure)
    assert bars(figure, "data intact").x == pytest.approx((device_seconds * 1e3,))
    assert figure.layout.xaxis.range[0] == 0


def test_a_timeline_without_gap_shows_no_stall() -> None:
    rows = [one_pass(), one_span("compute", 0, 0.0, 0.001), one_span("compute", 1, 0.001, 0.002)]

    assert "compute stall" not in {item.name for item in drawn(rows)["timeline-h2d"].figure.data}


def test_a_recipe_whose_first_chunks_were_lost_is_left_out_of_the_timeline() -> None:
    late = one_span("copy", TIMELINE_CHUNKS, 0, 1)
    kept = [one_pass(events=False), one_span("copy", 0, 0, 1, events=False)]

    assert "timeline-h2d" not in drawn([one_pass(), late])
    titles = [note.text for note in drawn([one_pass(), late, *kept])["timeline-h2d"].figure.layout.annotations]
    assert titles == ["no events"]
