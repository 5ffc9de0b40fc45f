"""How sure a figure is said to be, and which finding comes first."""

from __future__ import annotations

import math

import pytest

from pinscope.analysis.conclusions import (
    about,
    dearest_first,
    is_distinct,
    joined,
    known_within,
    on_lab,
    part_words,
    times,
    together,
)
from pinscope.analysis.statistics import summarize
from pinscope.records.finding import Finding, good, note, warning


def finding(severity: str, title: str) -> Finding:
    make = {"good": good, "note": note, "warning": warning}[severity]
    return make("rule", title=title, detail="", advice="")


def test_the_gravest_comes_first_and_of_those_the_most_costly() -> None:
    found = [
        (9.0, finding("good", "a")), (1.0, finding("note", "b")), (1.3, finding("warning", "c")),
        (8.0, finding("note", "d")), (6.5, finding("warning", "e")),
    ]  # fmt: skip
    assert "".join(one.title for one in dearest_first(found)) == "ecdba"


def test_a_median_of_many_values_is_known_within_its_interval_and_of_few_within_their_range() -> None:
    assert known_within(summarize([1.0, 1.2, 0.8, 1.0] * 4)) == pytest.approx(0.2)
    assert known_within(summarize([0.9, 1.0, 1.1])) == pytest.approx(0.1)
    assert known_within(summarize([1.0, 1.0])) == math.inf


def test_errors_of_a_ratio_add_up_as_those_of_independent_figures() -> None:
    three, four = summarize([0.97, 1.0, 1.03]), summarize([0.96, 1.0, 1.04])
    assert together(three, four) == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("uncertainty", "said", "words"),
    [(0.0, "", "6.5 times"), (0.05, "", "6.5 times"), (0.17, "about ", "6.5 times (± 17 %)"),
     (math.inf, "about ", "6.5 times")],
)  # fmt: skip
def test_what_is_known_only_roughly_is_said_so(uncertainty: float, said: str, words: str) -> None:
    assert (about(uncertainty), times(6.5, uncertainty)) == (said, words)


@pytest.mark.parametrize(
    ("ratio", "uncertainty", "apart"),
    [
        (2.0, 0.4, True),
        (2.0, 0.5, False),
        (2.0, 4.0, False),
        (0.5, 0.9, True),
        (0.5, 1.0, False),
        (1.2, math.inf, True),
    ],
)
def test_figures_are_told_apart_where_their_ratio_is_farther_from_1_than_it_may_be_off(
    ratio: float, uncertainty: float, apart: bool
) -> None:
    assert is_distinct(ratio, uncertainty) == apart


@pytest.mark.parametrize(("share", "words"), [(-0.4, "none"), (0.0, "none"), (0.961, "96.1 %"), (1.116, "all")])
def test_a_part_is_never_less_than_nothing_or_more_than_all(share: float, words: str) -> None:
    assert part_words(share) == words


def test_a_sentence_on_the_host_model_says_so_and_goes_on_small() -> None:
    assert on_lab("cuda", "Pinned copies run.") == "Pinned copies run."
    assert on_lab("host", "Pinned copies run.") == "Host model, no GPU: pinned copies run."
    assert on_lab("host", "GPU copies run.") == "Host model, no GPU: GPU copies run."


def test_items_of_a_list_are_joined_as_people_do() -> None:
    assert [joined(list(items)) for items in ("", "a", "ab", "abc")] == ["", "a", "a and b", "a, b and c"]
