"""Texts of findings: values are put into their places, and a clause goes where its value is unknown."""

from __future__ import annotations

import pytest

from pinscope.analysis.texts import Text, fill, say
from pinscope.records.finding import quantity

TEXTS = {
    "slow": Text(
        "it is slow", "{size:bytes} take {cost:times} as long", "It took {seconds:seconds}[ at {rate:rate}].", "Pin."
    ),
    "slow/much": Text("it is very slow", "Much slower", "By {cost:.0f}.", "Pin.", "critical"),
}


@pytest.mark.parametrize(
    ("text", "values", "words"),
    [
        ("{size:bytes}", {"size": 2**20}, "1 MiB"),
        ("{gain:times}", {"gain": 0.234}, "0.23 times"),
        ("{gain:times}", {"gain": 5.23}, "5.2 times"),
        ("{names:and}", {"names": ["a", "b", "c"]}, "a, b and c"),
        ("{count:threads}", {"count": 1}, "1 thread"),
        ("so[, at {rate:rate}].", {"rate": 2e9}, "so, at 2.00 GB/s."),
        ("so[, at {rate:rate}].", {"rate": None}, "so."),
    ],
)
def test_a_value_is_written_as_its_place_says(text: str, values: dict[str, object], words: str) -> None:
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
