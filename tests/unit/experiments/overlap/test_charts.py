"""What the charts of an overlap run say, read back from the figures."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go
import pytest

from pinscope.charts.chart import Chart
from pinscope.charts.theme import COLOURS
from pinscope.experiments.overlap.charts import TIMELINE_CHUNKS
from tests.data import synthetic
from tests.data.readings import As

Row = dict[str, Any]


def drawn(rows: list[Row], **run: Any) -> dict[str, Chart]:
    return {chart.key: chart for chart in As("overlap").draw(synthetic.run("overlap", **run), rows)}


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


@pytest.fixture(scope="module")
def full() -> dict[str, Chart]:
    return drawn(synthetic.overlap_rows(repeats=2, chunks=16))


def test_a_run_without_rows_has_no_charts() -> None:
    assert drawn([]) == {}


def test_a_full_run_has_every_chart_with_words_and_units(full: dict[str, Chart]) -> None:
    assert list(full) == [
        "overlap-passes",
        *("overlap-h2d", "timeline-h2d", "overlap-d2h", "timeline-d2h"),
    ]  # fmt: skip
    for chart in full.values():
        assert chart.title
        assert chart.caption.endswith(".")
        *_, lowest = chart.figure.select_xaxes()
        assert lowest.title.text.endswith(")")  # the unit in brackets


def test_overlap_is_drawn_in_per_cent_of_the_shorter_side() -> None:
    figure = drawn([one_pass()])["overlap-h2d"].figure

    assert bars(figure, "data intact").x == pytest.approx([90.0])
    assert "90.0 %" in written(figure)


def test_corrupted_data_is_told_by_colour_sign_and_number() -> None:
    figure = drawn([one_pass(), one_pass(events=False, corrupted_chunks=3)])["overlap-h2d"].figure

    unsafe = bars(figure, "✕ unsafe: data corrupted")
    assert unsafe.marker.color == COLOURS["corrupted"] != bars(figure, "data intact").marker.color
    assert unsafe.y == ("no events",)
    assert "90.0 % ✕ unsafe" in written(figure)
    assert unsafe.customdata[0].endswith("3 of 10 corrupted")
    assert bars(figure, "data intact").y == ("all four parts",)


def test_a_recipe_that_could_corrupt_but_did_not_is_shown_as_measured() -> None:
    figure = drawn([one_pass(events=False)])["overlap-h2d"].figure

    assert [item.name for item in figure.data] == ["data intact"]


@pytest.mark.parametrize(
    ("device_seconds", "words"), [(7.0, "none: slower than in turn"), (2.005, "none"), (1.9, "10.0 %")]
)
def test_nothing_is_hidden_by_less_than_nothing(device_seconds: float, words: str) -> None:
    figure = drawn([one_pass(memory="pageable", device_seconds=device_seconds)])["overlap-h2d"].figure

    assert words in written(figure)
    assert bars(figure, "data intact").x[0] >= 0
    assert figure.layout.xaxis.range[0] == 0


def test_noise_hides_no_more_than_all() -> None:
    figure = drawn([one_pass(device_seconds=0.9)])["overlap-h2d"].figure

    assert bars(figure, "data intact").x == (100.0,)
    assert "all" in written(figure)


def test_a_bar_of_copies_that_take_longer_says_how_much_and_what_they_hide() -> None:
    figure = drawn([one_pass(memory="pageable", device_seconds=5.37, copy_alone_seconds=5.3)])["overlap-h2d"].figure

    assert "copies 5.3 × as long, 93.0 % hidden" in written(figure)


def test_each_balance_has_a_panel_of_its_own() -> None:
    rows = [one_pass(balance=balance) for balance in ("compute_bound", "copy_bound", "balanced")]

    chart = drawn(rows)["overlap-h2d"]

    assert written(chart.figure)[:3] == ["Balanced", "Copy-bound", "Compute-bound"]
    assert "a kernel takes half as long as a pinned copy" in chart.caption


def test_the_timeline_draws_measured_starts_and_lengths() -> None:
    rows = [
        one_pass(),
        one_span("copy", 0, 0.0, 0.002),
        one_span("copy", 1, 0.002, 0.004),
        one_span("compute", 0, 0.002, 0.003),
        one_span("compute", 1, 0.0045, 0.0055),
    ]

    figure = drawn(rows)["timeline-h2d"].figure

    assert bars(figure, "copy").base == pytest.approx([0, 2])
    assert bars(figure, "copy").x == pytest.approx([2, 2])
    assert bars(figure, "kernel").base == pytest.approx([2, 4.5])
    assert bars(figure, "compute stall").base == pytest.approx([3])
    assert bars(figure, "compute stall").x == pytest.approx([1.5])


def test_a_timeline_without_gap_shows_no_stall() -> None:
    rows = [one_pass(), one_span("compute", 0, 0.0, 0.001), one_span("compute", 1, 0.001, 0.002)]

    assert "compute stall" not in {item.name for item in drawn(rows)["timeline-h2d"].figure.data}


def test_a_timeline_shows_the_first_chunks_of_every_recipe_and_says_how_many(full: dict[str, Chart]) -> None:
    chart = full["timeline-h2d"]

    copies = [item for item in chart.figure.data if item.name == "copy"]
    assert len(copies) == 5
    assert all(item.text == tuple(str(chunk) for chunk in range(TIMELINE_CHUNKS)) for item in copies)
    assert f"first {TIMELINE_CHUNKS} chunks" in chart.caption


def test_a_recipe_whose_first_chunks_were_lost_is_left_out_of_the_timeline() -> None:
    late = one_span("copy", TIMELINE_CHUNKS, 0, 1)
    kept = [one_pass(events=False), one_span("copy", 0, 0, 1, events=False)]

    assert "timeline-h2d" not in drawn([one_pass(), late])
    titles = [note.text for note in drawn([one_pass(), late, *kept])["timeline-h2d"].figure.layout.annotations]
    assert titles == ["no events"]


def test_the_title_of_an_unsafe_timeline_says_so() -> None:
    rows = [one_pass(events=False, corrupted_chunks=2), one_span("copy", 0, 0, 1, events=False)]

    figure = drawn(rows)["timeline-h2d"].figure

    assert figure.layout.annotations[0].text == "no events<br>✕ unsafe: 2 of 10 corrupted"


@pytest.mark.parametrize(("lab", "clock"), [("cuda", "by device events"), ("host", "host model (no GPU)")])
def test_a_timeline_says_whose_clock_it_is(lab: str, clock: str) -> None:
    rows = [one_pass(), one_span("copy", 0, 0, 1)]

    assert clock in drawn(rows, lab=lab)["timeline-h2d"].caption
