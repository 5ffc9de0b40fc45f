"""What the charts of an overlap run say, read back from the figures."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go
import pytest

from pinscope.experiments.overlap.charts import TIMELINE_CHUNKS
from pinscope.units import format_seconds
from tests.data.readings import Made
from tests.unit.experiments.overlap.test_arithmetic import one_pass

drawn = Made("overlap").charts


def one_span(lane: str, chunk: int, start: float, end: float, **changes: Any) -> dict[str, Any]:
    return one_pass(1.1, kind="span", lane=lane, chunk=chunk, start_seconds=start, end_seconds=end, **changes)


def bars(figure: go.Figure, name: str) -> Any:
    return next(item for item in figure.data if item.name == name)


def written(figure: go.Figure) -> list[str]:
    return [note.text for note in figure.layout.annotations]


@pytest.mark.parametrize(("device_seconds", "hidden"), [(7.0, "none"), (2.0, "none"), (1.9, "10.0 %"), (0.9, "all")])
def test_noise_hides_no_more_than_all_and_no_less_than_nothing(device_seconds: float, hidden: str) -> None:
    figure = drawn([one_pass(device_seconds)])["overlap-passes"].figure

    assert f"{format_seconds(device_seconds)}, {hidden} hidden" in written(figure)
    assert bars(figure, "data intact").x == pytest.approx((device_seconds * 1e3,))
    assert figure.layout.xaxis.range[0] == 0


def test_a_timeline_without_gap_shows_no_stall() -> None:
    rows = [one_pass(1.1), one_span("compute", 0, 0.0, 0.001), one_span("compute", 1, 0.001, 0.002)]

    assert "compute stall" not in {item.name for item in drawn(rows)["timeline-h2d"].figure.data}


def test_a_recipe_whose_first_chunks_were_lost_is_left_out_of_the_timeline() -> None:
    late = one_span("copy", TIMELINE_CHUNKS, 0, 1)
    kept = [one_pass(1.1, events=False), one_span("copy", 0, 0, 1, events=False)]

    assert "timeline-h2d" not in drawn([one_pass(1.1), late])
    titles = [note.text for note in drawn([one_pass(1.1), late, *kept])["timeline-h2d"].figure.layout.annotations]
    assert titles == ["no events"]
