"""Texts of findings, how sure a figure is said to be, and which finding comes first."""

from __future__ import annotations

import math

import pytest

from pinscope.analysis.statistics import exceeds, is_distinct, measured, summarize, together
from pinscope.analysis.texts import (
    Text,
    about,
    about_times,
    dearest_first,
    fill,
    on_lab,
    part_of,
    part_words,
    say,
    times,
)
from pinscope.records.run import Finding, good, note, quantity, warning
from pinscope.report.facts import quantity_text

TEXTS = {
    "slow": Text(
        "it is slow", "{size:bytes} take {cost:times} as long", "It took {seconds:seconds}[ at {rate:rate}].", "Pin."
    ),
    "slow/much": Text("it is very slow", "Much slower", "By {cost:.0f}.", "Pin.", "critical"),
}


def test_a_value_is_written_as_its_place_says() -> None:
    for text, values, words in [
        ("{size:bytes}", {"size": 2**20}, "1 MiB"),
        ("{gain:times}", {"gain": 0.234}, "0.23 times"),
        ("{gain:times}", {"gain": 5.23}, "5.2 times"),
        ("{names:and}", {"names": ["a", "b", "c"]}, "a, b and c"),
        ("{count:threads}", {"count": 1}, "1 thread"),
        ("so[, at {rate:rate}].", {"rate": 2e9}, "so, at 2.00 GB/s."),
        ("so[, at {rate:rate}].", {"rate": None}, "so."),
    ]:
        assert fill(text, values) == words


def test_a_finding_has_its_rule_words_evidence_and_cost() -> None:
    evidence = quantity("time", 2.0, "seconds")
    cost, finding = say(TEXTS, "slow", evidence, evidence, cost=3.0, size=2**30, seconds=2.0, rate=None)
    assert (cost, finding.rule, finding.severity) == (3.0, "slow", "note")
    assert (finding.title, finding.detail, finding.advice) == (
        "1 GiB take 3.0 times as long",
        "It took 2.00 s.",
        "Pin.",
    )
    assert finding.evidence == (evidence,)


def test_a_variant_has_the_rule_s_name_and_its_own_severity() -> None:
    _, finding = say(TEXTS, "slow/much", cost=40.0)
    assert (finding.rule, finding.severity, finding.detail) == ("slow", "critical", "By 40.")


def test_a_place_without_a_value_is_an_error() -> None:
    with pytest.raises(KeyError):
        say(TEXTS, "slow", size=1)


def finding(severity: str, title: str) -> Finding:
    make = {"good": good, "note": note, "warning": warning}[severity]
    return make("rule", title=title, detail="", advice="")


def test_the_gravest_comes_first_and_of_those_the_most_costly() -> None:
    findings = [
        (9.0, finding("good", "a")), (1.0, finding("note", "b")), (1.3, finding("warning", "c")),
        (8.0, finding("note", "d")), (6.5, finding("warning", "e")),
    ]  # fmt: skip
    assert "".join(finding.title for finding in dearest_first(findings)) == "ecdba"


def test_few_values_are_known_by_students_interval_and_one_not_at_all() -> None:
    off = 4.303 * 0.1 * math.sqrt(2 / 3)
    assert summarize([0.9, 1.0, 1.1], drift=0.0).uncertainty == pytest.approx(off)
    assert summarize([1.0]).uncertainty == math.inf


def test_errors_of_a_ratio_add_up_as_factors_of_independent_figures() -> None:
    three, four = (summarize([1.0] * 8, drift=drift) for drift in (0.03, 0.04))
    assert together(three, four) == pytest.approx(0.05, abs=1e-3)
    wide = summarize([1.0] * 8, drift=1.0)
    assert together(wide, wide) == pytest.approx(2 ** math.sqrt(2) - 1)


def test_a_ratio_is_no_finer_than_it_is_known() -> None:
    for values, said, words, share in [
        ([1.0] * 8, "", "6.5 times", "99 %"),
        ([0.83, 1.0, 1.0, 1.17] * 2, "about ", "6.5 times (± 17 %)", "99 % (± 17 %)"),
        ([0.98, 1.0, 1.0], "", "6.5 times (3 repeats)", "99 % (3 repeats)"),
        ([1.0], "about ", "6.5 times (1 repeat)", "99 % (1 repeat)"),
    ]:
        summary, exact = summarize(values), summarize([1.0] * 8)
        assert about(summary.uncertainty) == said
        assert (times(6.5, summary, exact), part_of(0.992, summary, exact)) == (words, share)


def test_of_a_ratio_that_varies_too_much_for_a_figure_the_least_is_said() -> None:
    for ratio, off, words, short in [
        (9.6, 0.5, "9.6 times (± 50 %)", "about 9.6 times"), (9.6, 0.57, "at least 4.1 times", "at least 4.1 times"),
        (4.2, 0.6, "at least 1.67 times", "at least 1.67 times"), (1.1, 0.6, "1.1 times (± 60 %)", "about 1.1 times"),
    ]:  # fmt: skip
        compared = summarize([1.0] * 8, drift=off), summarize([1.0] * 8, drift=0.0)
        assert (times(ratio, *compared), about_times(ratio, *compared)) == (words, short)


def test_a_median_exceeds_another_only_by_more_than_both_may_be_off() -> None:
    for first, second, more in [
        ([1.2] * 8, [1.0] * 8, True), ([1.0] * 8, [1.2] * 8, False), ([0.9, 1.2, 1.2, 1.5] * 2, [1.0] * 8, False),
        ([1.2], [1.0] * 8, False), ([1.3], [1.0] * 8, True), ([1.0], [0.0], False),
    ]:  # fmt: skip
        assert exceeds(summarize(first), summarize(second)) == more


@pytest.mark.parametrize(("values", "text"), [([1e9] * 8, "1.00 GB/s ± 2.0 %"), ([1e9] * 3, "1.00 GB/s (3 repeats)")])
def test_below_8_repeats_a_figure_has_their_number_in_place_of_an_interval(values: list[float], text: str) -> None:
    figure = measured("", summarize(values), "bytes/second")
    assert quantity_text(figure) == text
    assert (figure.spread is None) == ("repeats" in text)


def test_figures_are_told_apart_where_their_ratio_is_farther_from_1_than_it_may_be_off() -> None:
    for ratio, off, apart in [
        (2.0, 0.4, True),
        (2.0, 0.6, False),
        (2.0, 2.0, False),
        (0.5, 0.4, True),
        (0.5, 0.6, False),
        (0.0, 9.0, True),
    ]:
        assert is_distinct(ratio, summarize([1.0] * 8, drift=off)) == apart


@pytest.mark.parametrize(("ratio", "apart"), [(1.2, False), (1.3, True), (0.7, True)])
def test_what_was_measured_once_is_told_apart_where_it_is_far_from_1(ratio: float, apart: bool) -> None:
    assert is_distinct(ratio, summarize([1.0]), summarize([1.0] * 8)) == apart


def test_a_part_is_never_less_than_nothing_or_more_than_all() -> None:
    assert [part_words(share) for share in (-0.4, 0.0, 0.961, 1.116)] == ["none", "none", "96.1 %", "all"]


def test_a_sentence_on_the_host_model_says_so_and_goes_on_small() -> None:
    assert on_lab("cuda", "Pinned copies run.") == "Pinned copies run."
    assert on_lab("host", "Pinned copies run.") == "Host model, no GPU: pinned copies run."
    assert on_lab("host", "GPU copies run.") == "Host model, no GPU: GPU copies run."
