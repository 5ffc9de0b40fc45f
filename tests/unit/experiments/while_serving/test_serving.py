"""The loop that serves beside other work, and the ways to take memory: with locks, and calls that take notes."""

from __future__ import annotations

import gc
import threading
import time
from collections import Counter
from contextlib import ExitStack
from itertools import count

import pytest

from pinscope.experiments.contract import budget_of
from pinscope.experiments.while_serving.experiment import WhileServing, WhileServingParams, serve_during
from pinscope.experiments.while_serving.ways import WAYS, Apparatus
from tests.data import synthetic
from tests.unit.lab.driver import Driver

MIB, GIB = 2**20, 2**30


@pytest.mark.parametrize("held", [0.0, 0.1])
def test_the_call_that_needs_a_lock_waits_while_another_thread_holds_it_and_the_others_do_not(held: float) -> None:
    lock = threading.Lock()

    def work() -> str:
        with lock:
            time.sleep(held)
        return "done"

    def locked() -> None:
        with lock:
            time.sleep(1e-4)

    result, served = serve_during(work, {"free": lambda: None, "locked": locked}, time.perf_counter)
    assert result == "done"
    assert served.seconds >= held
    assert served.rounds >= 1
    assert served.longest["round"] >= served.longest["locked"] >= max(0.8 * held, 1e-4)
    assert served.typical["free"] <= served.typical["locked"] <= served.typical["round"]


def test_calls_are_timed_each_for_itself_and_a_round_from_begin_to_begin() -> None:
    ticks = count()  # every look at the clock is a second later
    going = threading.Event()

    def call() -> None:
        going.set()

    _, served = serve_during(going.wait, {"one": call, "two": lambda: None}, lambda: float(next(ticks)))
    assert served.longest["one"] >= served.typical["one"] >= 1
    assert served.longest["round"] >= 3


def test_work_that_fails_is_raised_and_leaves_no_thread() -> None:
    before = threading.active_count()
    with pytest.raises(RuntimeError, match="broken"):
        serve_during(_fail, {"call": lambda: None}, time.perf_counter)
    with pytest.raises(RuntimeError, match="broken"):
        serve_during(lambda: None, {"call": _fail}, time.perf_counter)
    assert threading.active_count() == before


def _fail() -> None:
    raise RuntimeError("broken")


def test_every_way_takes_all_memory_and_gives_all_of_it_back_from_any_thread() -> None:
    params = WhileServingParams.preset("cuda", quick=True).with_overrides(
        {"size": "64MiB", "chunks": "16MiB,1GiB", "longest_wait": 10}
    )
    _, *taking = [case.what for case in WhileServing().cases(params)]
    assert taking == [
        (0, "touch", None), (0, "host_alloc", None), (0, "register", None), (0, "chunks", 16 * MIB), (0, "auto", None),
    ]  # fmt: skip
    for _, way, chunk in taking:
        calls, stack = Driver(), ExitStack()
        threads = params.thread_count()
        apparatus = Apparatus(params.size, params.longest_wait, threads, calls, lambda address: address > 0)
        memory = apparatus.taken(way, chunk)
        taken, _ = serve_during(lambda: stack.enter_context(memory), {"call": time.monotonic}, time.perf_counter)  # noqa: B023
        held = sum(calls.held.values())
        assert held == (0 if way == "touch" else 64 * MIB), way
        assert taken.pinned is (None if way == "touch" else True), way
        assert (taken.chunk is None) == (way in ("touch", "host_alloc", "register")), way
        serve_during(stack.close, {"call": time.monotonic}, time.perf_counter)
        assert calls.held == {}, way
        assert calls.untouched == 0, way


def test_the_budget_is_one_way_at_a_time_with_its_page_table() -> None:
    for quick, size in ((False, 16 * GIB), (True, GIB)):
        params = WhileServingParams.preset("cuda", quick)
        assert params.ways == tuple(WAYS)
        budget = budget_of(WhileServing(), params, synthetic.environment())
        assert (budget.pinned_bytes, budget.device_bytes) == (size + MIB, size // 512 + 3 * MIB)
        assert budget.seconds < (6 if quick else 46)


def test_the_way_that_takes_longer_than_all_others_is_taken_once() -> None:
    cases = WhileServing().cases(WhileServingParams.preset("cuda", quick=False))
    ways = Counter(case.what.way for case in cases)
    assert ways == {"idle": 1, "touch": 3, "host_alloc": 1, "register": 3, "chunks": 18, "auto": 3}


def test_nothing_is_collected_meanwhile() -> None:
    seen: list[bool] = []
    serve_during(lambda: seen.append(gc.isenabled()), {"call": lambda: None}, time.perf_counter)
    assert (seen, gc.isenabled()) == ([False], True)
    gc.disable()
    try:
        serve_during(lambda: None, {"call": lambda: None}, time.perf_counter)
        assert not gc.isenabled()
    finally:
        gc.enable()
