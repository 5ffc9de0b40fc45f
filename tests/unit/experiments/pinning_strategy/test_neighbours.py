"""Neighbours as real processes: what they say, and what happens when one dies or hangs."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from time import sleep

import pytest

from pinscope.errors import MeasurementFailed
from pinscope.experiments.pinning_strategy import cuda_neighbour
from pinscope.experiments.pinning_strategy.experiment import Neighbours


@pytest.fixture(autouse=True)
def _children_find_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[4]))


def odd(how: str, *calls: str) -> Neighbours:
    return Neighbours(how, calls, module="tests.data.odd_neighbour")


def test_each_neighbour_says_its_longest_call_since_it_was_asked() -> None:
    with odd("slow", "info", "nvml") as both:
        time.sleep(0.1)  # the first, slow call has begun
        first, second = both.longest(), both.longest()
    assert 0.2 <= first["info"] < 2
    assert second["info"] < 0.1
    assert first["nvml"] < 0.1


def test_the_control_says_how_late_it_woke() -> None:
    with Neighbours("no GPU", ("control",)) as control:
        time.sleep(0.1)
        late = control.longest()["control"]
    assert 0 < late < 1


def test_the_control_makes_no_call_of_a_driver() -> None:
    without_drivers = (
        "import sys; sys.modules['cupy'] = sys.modules['pynvml'] = None\n"
        "from pinscope.experiments.pinning_strategy.cuda_neighbour import Neighbour\n"
        "one = Neighbour('control', 'no GPU'); one.start(); one.meanwhile(); assert one.longest()['seconds'] > 0"
    )
    subprocess.run([sys.executable, "-c", without_drivers], check=True)


def test_the_control_measures_waiting_for_a_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    woken_late = 0.03
    monkeypatch.setattr(cuda_neighbour.time, "sleep", lambda seconds: sleep(seconds + woken_late))
    assert woken_late <= cuda_neighbour.lateness() < 1


def test_a_neighbour_that_does_not_start_is_named() -> None:
    with pytest.raises(MeasurementFailed, match=r"neighbour process \(NVML\) ended with code 1 while"):
        odd("fails at the start", "nvml").__enter__()
