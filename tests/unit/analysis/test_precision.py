"""Which combinations a run knows less well than it was asked to, in one finding."""

from __future__ import annotations

from dataclasses import replace

from pinscope.analysis.precision import Repeated, precision_not_reached
from pinscope.analysis.statistics import summarize
from pinscope.records.run import Run
from tests.data import synthetic

STEADY = Repeated("steady", summarize([1.0, 1.001] * 8))
NOISY = Repeated("noisy", summarize([1.0, 1.04, 0.96, 1.0] * 4))
NOISIEST = Repeated("noisiest", summarize([1.0, 1.2, 0.8, 1.0] * 4), ("sizes=4KiB",))
FEW = Repeated("few", summarize([1.0] * 7))


def run(**params: float) -> Run:
    return synthetic.run("bandwidth", params=params)


def test_where_all_are_known_as_asked_there_is_no_finding() -> None:
    assert list(precision_not_reached(run(precision=0.01), [STEADY])) == []
    assert list(precision_not_reached(run(precision=0.5), [STEADY, NOISY, NOISIEST])) == []
    assert list(precision_not_reached(run(precision=0.01), [])) == []


def test_a_run_that_asked_for_nothing_reached_it() -> None:
    assert list(precision_not_reached(run(), [NOISY])) == []


def test_a_run_that_goes_on_is_not_flagged() -> None:
    going_on = run(precision=0.01).model_copy(update={"status": "running"})
    assert list(precision_not_reached(going_on, [NOISY])) == []


def test_one_finding_counts_them_and_names_the_worst_by_how_much_and_what_to_do() -> None:
    (finding,) = precision_not_reached(
        run(precision=0.05, repeats=16, time_limit=2.0), [STEADY, NOISY, NOISIEST, STEADY]
    )
    assert finding.title == "1 of 4 combinations did not reach the precision asked for, ± 5.0 %"
    assert finding.detail == "The worst: noisiest, ± 20.0 % after 16 repeats."
    # (20 %)² ÷ (5 %)² × 1.5 times as many, and as long.
    assert finding.advice.endswith(
        "for longer: pinscope run bandwidth --lab cuda --set repeats=384 --set time_limit=48s --set sizes=4KiB"
    )


def test_it_says_whether_a_figure_of_the_headline_rests_on_them_and_names_the_worst_of_those() -> None:
    shown, other = replace(NOISY, headline=True), replace(NOISIEST, headline=False)
    (finding,) = precision_not_reached(run(precision=0.01), [shown, other])
    assert finding.detail.startswith("One of them is behind a figure of the headline. The worst of the headline: noisy")
    (finding,) = precision_not_reached(run(precision=0.01), [replace(STEADY, headline=True), other])
    assert finding.detail.startswith("None of them is behind a figure of the headline. The worst: noisiest")


def test_with_too_few_repeats_nothing_is_claimed_to_be_known() -> None:
    (finding,) = precision_not_reached(run(precision=0.05, repeats=15, time_limit=0.1), [FEW, NOISIEST])
    assert finding.title == "2 of 2 combinations did not reach the precision asked for, ± 5.0 %"
    assert finding.detail == "The worst: few, with 7 repeats, too few for an interval."
    assert finding.evidence[0].value is None
    assert "--set repeats=15 --set time_limit=1" in finding.advice


def test_no_longer_run_is_advised_than_one_waits_for_and_it_says_how_far_that_leads() -> None:
    (finding,) = precision_not_reached(run(precision=0.01, repeats=16, time_limit=2.0), [NOISIEST])
    # 60 s are 30 times 2 s, and the interval narrows with the root: 20 % ÷ √30.
    assert "With as much noise as here this reaches about ± 3.7 %: pinscope" in finding.advice
    assert "--set repeats=480 --set time_limit=60s --set" in finding.advice


def test_a_run_that_was_allowed_longer_is_not_advised_less() -> None:
    (finding,) = precision_not_reached(run(precision=0.01, repeats=16, time_limit=90.0), [NOISIEST])
    assert "--set time_limit=90s " in finding.advice


def test_no_more_repeats_are_advised_than_can_be_asked_for() -> None:
    (finding,) = precision_not_reached(run(precision=0.0001, repeats=60, time_limit=0.01), [NOISIEST])
    assert "--set repeats=10000 " in finding.advice
    # 10,000 are 625 times 16.
    assert "reaches about ± 0.8 %: pinscope" in finding.advice
