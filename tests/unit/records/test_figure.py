"""The table of figures: complete, without clashes, what figures come to together, and those that are not exact."""

from __future__ import annotations

import json
from itertools import chain

from pinscope.records.environment import Link
from pinscope.records.figure import Figure, about, at_least, at_most, bound_of_sum, figures
from pinscope.records.snapshot import DeviceFigures, GpuUse, Holder, HostTotals
from pinscope.records.timeline import TimelineRow

RECORDS = (HostTotals, Holder, GpuUse, DeviceFigures, Link)


def test_each_figure_says_what_it_is_in_words_that_end() -> None:
    every = list(chain.from_iterable(map(figures, RECORDS)))
    assert len(every) > 40
    assert [figure.field for figure in every if not figure.label or not figure.help.endswith(".")] == []


def test_no_two_figures_share_a_metric_and_none_of_a_record_a_label_or_a_column() -> None:
    metrics = [figure.metric for record in RECORDS for figure in figures(record) if figure.metric]
    assert len(metrics) == len(set(metrics))
    for group in ((HostTotals,), (Holder, GpuUse), (DeviceFigures, Link)):
        every = [figure for record in group for figure in figures(record)]
        for names in ([figure.label for figure in every], [figure.column for figure in every]):
            assert len(names) == len(set(names))


def test_what_is_known_of_several_is_summed_up_where_that_means_something() -> None:
    for adds_up, values, together in [
        ("sum", [1, None, 2], 3),
        ("max", [1, None, 2], 2),
        (None, [1, 2], None),
        ("sum", [None], None),
        ("max", [], None),
    ]:
        figure = Figure(label="A", help="A figure.", adds_up=adds_up)  # type: ignore[arg-type]
        assert figure.together(values) == together


def test_a_row_of_a_timeline_has_each_figure_that_is_kept_with_its_meaning() -> None:
    described = {name: field.description for name, field in TimelineRow.model_fields.items()}
    for record in RECORDS:
        for figure in figures(record):
            if figure.timeline:
                assert figure.help in (described[figure.column] or "")
    both = described["driver_memory_bytes"] or ""
    assert both.startswith("Of the host: ")
    assert "Of a holder: " in both


LESS, MORE = at_least("one was not seen"), at_most("some may be free")


def test_a_sum_is_bounded_as_its_parts_are_and_about_right_where_they_disagree() -> None:
    for parts, kind in [
        ([], None),
        ([None, None], None),
        ([None, LESS], "at_least"),
        ([LESS, at_least("another was not seen")], "at_least"),
        ([MORE, None, MORE], "at_most"),
        ([LESS, MORE], "about"),
        ([LESS, about("a guess")], "about"),
    ]:
        bound = bound_of_sum(parts)
        assert (bound.kind if bound else None) == kind


def test_a_sum_says_each_reason_once() -> None:
    bound = bound_of_sum([LESS, MORE, LESS])
    assert bound is not None
    assert bound.text == "about: one was not seen; some may be free"


def test_in_json_an_estimate_is_a_text_with_its_kind_beside_it() -> None:
    use = GpuUse(index=0, memory_bytes=5, page_table_bytes=None, estimates={"memory_bytes": MORE})
    document = json.loads(use.model_dump_json())
    assert document["estimates"] == {"memory_bytes": "at most: some may be free"}
    assert document["bounds"] == {"memory_bytes": "at_most"}


def test_a_figure_has_the_reason_why_it_is_missing_or_not_exact() -> None:
    use = GpuUse(
        index=0, memory_bytes=5, page_table_bytes=None, estimates={"memory_bytes": LESS},
        missing={"page_table_bytes": "no GPU"},
    )  # fmt: skip
    assert use.note("memory_bytes") == "at least: one was not seen"
    assert use.note("page_table_bytes") == "no GPU"
    assert use.note("index") is None
