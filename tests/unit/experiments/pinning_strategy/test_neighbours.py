"""Neighbours as real processes: what they tell, and what happens when one dies or hangs."""

from __future__ import annotations

import sys
import time
from time import sleep

import pytest

from pinscope.errors import MeasurementFailed
from pinscope.experiments.pinning_strategy import cuda_neighbour, neighbours
from pinscope.experiments.pinning_strategy.neighbours import NeighbourCall, Neighbours

SERVE = """
import sys, time
from pinscope.experiments.pinning_strategy.cuda_neighbour import serve, timed
start = time.monotonic()
state = {{"slow": {slow}}}
def call():
    time.sleep(state.pop("slow", 0))
print("ready", flush=True)
serve(timed(call), sys.stdin, sys.stdout)
"""


def child(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_each_neighbour_tells_its_longest_call_since_it_was_asked() -> None:
    commands: dict[NeighbourCall, list[str]] = {
        "info": child(SERVE.format(slow=0.2)),
        "nvml": child(SERVE.format(slow=0)),
    }
    with Neighbours(commands) as both:
        time.sleep(0.1)  # the first, slow call has begun
        first, second = both.longest(), both.longest()
    assert 0.2 <= first["info"] < 2
    assert second["info"] < 0.1
    assert first["nvml"] < 0.1


def test_the_control_makes_no_call_of_a_driver_and_tells_how_late_it_woke() -> None:
    without_drivers = [
        sys.executable, "-c",
        "import sys; sys.modules['cupy'] = sys.modules['pynvml'] = None\n"
        "from pinscope.experiments.pinning_strategy.cuda_neighbour import main; main('control', 'no GPU')",
    ]  # fmt: skip
    with Neighbours({"control": without_drivers}) as control:
        time.sleep(0.1)
        late = control.longest()["control"]
    assert 0 < late < 1


def test_the_control_tells_waiting_for_a_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    woken_late = 0.03
    monkeypatch.setattr(cuda_neighbour.time, "sleep", lambda seconds: sleep(seconds + woken_late))
    assert woken_late <= cuda_neighbour.lateness() < 1


def test_a_neighbour_that_does_not_start_is_named() -> None:
    with pytest.raises(MeasurementFailed, match=r"neighbour process \(NVML memory query\) ended"):
        Neighbours({"info": child(SERVE.format(slow=0)), "nvml": child("raise SystemExit(1)")}).__enter__()


def test_a_neighbour_that_dies_meanwhile_is_named() -> None:
    dies = child("print('ready', flush=True)")
    with (
        pytest.raises(MeasurementFailed, match=r"\(kernel launch and wait\) ended"),
        Neighbours({"kernel": dies}) as one,
    ):
        one.longest()


def test_a_neighbour_that_hangs_is_named_and_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "ANSWER_SECONDS", 0.3)
    monkeypatch.setattr(neighbours, "END_SECONDS", 0.3)
    hangs = child("import time; print('ready', flush=True); time.sleep(600)")
    with pytest.raises(MeasurementFailed, match="has not answered for 0 s"), Neighbours({"allocation": hangs}) as one:
        one.longest()
