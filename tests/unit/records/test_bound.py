"""A figure that is not exact: how it bounds the true value, in sums and in JSON of now and of before."""

from __future__ import annotations

import json

import pytest

from pinscope.records.figure import Bound, about, at_least, at_most, bound_of_sum
from pinscope.records.snapshot import GpuUse

LESS, MORE = at_least("one was not seen"), at_most("some may be free")


@pytest.mark.parametrize(
    ("parts", "kind"),
    [
        ([], None),
        ([None, None], None),
        ([None, LESS], "at_least"),
        ([LESS, at_least("another was not seen")], "at_least"),
        ([MORE, None, MORE], "at_most"),
        ([LESS, MORE], "about"),
        ([LESS, about("a guess")], "about"),
    ],
)
def test_a_sum_is_bounded_as_its_parts_are_and_about_right_where_they_disagree(
    parts: list[Bound | None], kind: str | None
) -> None:
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
