"""Neighbours as real processes: what they tell, and what happens when one dies or hangs."""

from __future__ import annotations

import sys
import time

import pytest

from pinscope.errors import MeasurementFailed
from pinscope.lab import neighbours
from pinscope.lab.neighbours import NeighbourCall, Neighbours

SERVE = """
import sys, time
from pinscope.lab.cuda_neighbour import serve
start = time.monotonic()
state = {{"slow": {slow}}}
def call():
    time.sleep(state.pop("slow", 0))
print("ready", flush=True)
serve(call, sys.stdin, sys.stdout)
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
