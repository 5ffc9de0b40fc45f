"""The harness repeats as long as it must and no longer. No test waits: the clock is passed in."""

from __future__ import annotations

import random

import pytest

from pinscope.analysis.statistics import looks, median_uncertainty
from pinscope.errors import Cancelled
from pinscope.lab.harness import Harness, Precision, Turn


class FakeClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Procedure:
    """Takes the turns of a harness; every reading lasts ``seconds`` by the fake clock."""

    def __init__(self, precision: Precision, readings: list[float], seconds: float = 0.0) -> None:
        self.clock = FakeClock()
        self.values: list[float] = []
        self.turns: list[Turn] = []
        for turn in Harness(clock=self.clock).turns(precision, self.values):
            self.turns.append(turn)
            self.clock.now += seconds
            if not turn.warmup:
                self.values.append(readings[turn.repeat % len(readings)])


def test_steady_readings_end_at_the_least_number_of_repeats() -> None:
    taken = Procedure(Precision(relative=0.01, most=60), [1.0, 1.001])
    assert len(taken.values) == 8


def test_noisy_readings_go_on_until_the_median_is_known_well_enough() -> None:
    source = random.Random(5)
    readings = [source.gauss(10.0, 1.0) for _ in range(5000)]
    taken = Procedure(Precision(relative=0.02, most=5000, seconds=1e9), readings)
    planned = looks(8, 5000)
    assert len(taken.values) in planned[1:-1]
    assert median_uncertainty(taken.values) <= 0.02
    assert median_uncertainty(taken.values[: planned[planned.index(len(taken.values)) - 1]]) > 0.02


def test_hopeless_readings_end_at_the_most_repeats() -> None:
    taken = Procedure(Precision(relative=0.01, most=60, seconds=1e9), [1.0, 5.0])
    assert len(taken.values) == 60


def test_the_time_limit_ends_repeating_after_the_turn_that_passes_it() -> None:
    taken = Procedure(Precision(relative=0.01, most=1000, seconds=2.0, warmups=0), [1.0, 5.0], seconds=0.125)
    assert len(taken.values) == 16


def test_the_least_number_is_taken_even_when_the_time_is_over() -> None:
    taken = Procedure(Precision(least=3, seconds=2.0), [1.0, 5.0], seconds=10.0)
    assert len(taken.values) == 3


def test_warmups_come_first_are_told_apart_and_take_no_time_from_the_limit() -> None:
    precision = Precision(relative=0.01, most=1000, seconds=1.0, warmups=3)
    taken = Procedure(precision, [1.0, 5.0], seconds=0.125)
    assert taken.turns[:4] == [Turn(0, True), Turn(1, True), Turn(2, True), Turn(0, False)]
    assert not any(turn.warmup for turn in taken.turns[3:])
    assert len(taken.values) == 8


def test_repeats_are_numbered_without_gaps() -> None:
    taken = Procedure(Precision(most=20, warmups=0), [1.0, 5.0])
    assert [turn.repeat for turn in taken.turns] == list(range(20))


def test_a_cancel_between_two_turns_stops_the_run_before_the_next_reading() -> None:
    values: list[float] = []
    harness = Harness(clock=FakeClock(), cancelled=lambda: len(values) >= 3)

    def measure() -> None:
        for turn in harness.turns(Precision(), values):
            if not turn.warmup:
                values.append(1.0)

    with pytest.raises(Cancelled, match="cancelled"):
        measure()
    assert len(values) == 3


def test_a_cancel_is_noticed_during_warmups_and_progress() -> None:
    harness = Harness(clock=FakeClock(), cancelled=lambda: True)
    with pytest.raises(Cancelled):
        next(harness.turns(Precision(), []))
    with pytest.raises(Cancelled):
        harness.progress(0.5, "copying")


def test_progress_is_passed_on_and_kept_between_0_and_1() -> None:
    told: list[tuple[float, str]] = []
    harness = Harness(report=lambda fraction, message: told.append((fraction, message)))
    for fraction in (-0.1, 0.25, 1.5):
        harness.progress(fraction, "4 KiB")
    assert told == [(0.0, "4 KiB"), (0.25, "4 KiB"), (1.0, "4 KiB")]


def test_notes_for_the_reader_are_passed_on() -> None:
    notes: list[str] = []
    Harness(note=notes.append).note("managed memory is left out")
    assert notes == ["managed memory is left out"]


def test_the_median_is_looked_at_five_times_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[int] = []

    def counted(values: list[float]) -> float:
        looked_at.append(len(values))
        return median_uncertainty(values)

    monkeypatch.setattr("pinscope.lab.harness.median_uncertainty", counted)
    taken = Procedure(Precision(relative=0.001, most=10_000, seconds=1e9), [1.0, 5.0])
    assert len(taken.values) == 10_000
    assert [*looked_at, 10_000] == list(looks(8, 10_000))


def test_what_a_turn_counts_stops_the_repeats_and_a_warm_up_counts_nothing() -> None:
    turns = []
    for turn in Harness().turns(Precision(relative=0.1, least=3, most=30, seconds=60.0, warmups=2)):
        turn.count(7.0)
        turns.append(turn)
    assert [turn.labels for turn in turns[:3]] == [
        {"repeat": 0, "warmup": True}, {"repeat": 1, "warmup": True}, {"repeat": 0, "warmup": False},
    ]  # fmt: skip
    assert turns[-1].values == [7.0] * (len(turns) - 2)
    assert len(turns) < 32
